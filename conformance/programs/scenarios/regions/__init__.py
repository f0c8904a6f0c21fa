"""What regions are given, do and return: arguments, results, values, operators, modules, transforms, regions in regions."""
