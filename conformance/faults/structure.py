"""Faults of the nested checkpoint that laws of the family structure must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("passes-keyword-arguments-by-position", "structure", "keyword_arguments", "region",
           "run.run(lambda: self.function(*args, **kwargs)", "run.run(lambda: self.function(*args, *reversed(kwargs.values()))",
           profile="default"),
    Mutant("returns-lists-as-tuples", "structure", "containers_as_outputs", "nested", "    return output\n",
           "    return tuple(output) if isinstance(output, list) else output\n"),
    Mutant("rebuilds-a-dataclass-as-a-dict", "structure", "containers_as_arguments", "inputs", "if id(self) not in made:",
           "if True:\n            return put_together(self.fields, tensors, made)\n        if False:"),
    Mutant("rebuilds-what-holds-no-tensor", "structure", "objects_without_tensors", "inputs",
           "if any(isinstance(leaf, _Position | _Record) for leaf in fields[0]):", "if True:"),
    Mutant("takes-an-int-for-a-position", "structure", "non_tensor_arguments", "inputs", "type(leaf) is _Position",
           "isinstance(leaf, int)"),
    Mutant("drops-none-from-outputs", "structure", "non_tensor_outputs", "nested", "    return output\n",
           "    return tuple(o for o in output if o is not None) if type(output) is tuple else output\n"),
)  # fmt: skip
