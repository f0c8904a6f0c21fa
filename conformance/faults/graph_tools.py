"""Faults of the graph tools that laws of the family graph_tools must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("forgets-which-output", "graph_tools", "an_edge_stands_for_an_input", "graph.edges",
           "GradientEdge(node, tensor.output_nr,", "GradientEdge(node, 0,"),
    Mutant("gives-an-edge-of-the-inputs", "graph_tools", "an_edge_stands_for_an_output", "graph.edges",
           "    return GradientEdge(node,",
           "    node = next(below for below, _ in node.next_functions if below is not None) if tensor.grad_fn else node\n"
           "    return GradientEdge(node,"),
    Mutant("owns-the-tensor", "graph_tools", "an_edge_keeps_its_graph_and_no_longer", "graph.edges",
           "    return GradientEdge(node,", "    node.metadata['tensor'] = tensor\n    return GradientEdge(node,"),
    Mutant("takes-what-has-no-gradient", "graph_tools", "what_has_no_edge_is_refused", "graph.edges",
           "if not tensor.requires_grad:", "if False:"),
    Mutant("counts-the-first-alone", "graph_tools", "an_incremented_version_is_a_change", "graph.edges",
           "    tensors = tuple(tensor)", "    tensors = tuple(tensor)[:1]"),
    Mutant("counts-before-it-looks", "graph_tools", "versions_of_tensors_alone", "graph.edges",
           "if not isinstance(each, torch.Tensor):", "if False:"),
    Mutant("counts-beside-inference-tensors-not", "graph_tools", "inference_tensors_have_no_version", "graph.edges",
           "torch._C._increment_version(tensors)",
           "any(each.is_inference() for each in tensors) or torch._C._increment_version(tensors)"),
    Mutant("logs-every-backward-inside", "graph_tools", "one_backward_alone_is_logged", "graph.executed",
           "        if task == self.task:", "        if True:"),
    Mutant("never-ends-logging", "graph_tools", "logging_ends_with_an_error", "graph.executed", "            handle.remove()",
           "            hook.task = None"),
    Mutant("logs-at-any-level", "graph_tools", "nothing_is_logged_below_debug_level", "graph.executed",
           "if log.isEnabledFor(logging.DEBUG):", "log.critical('logging')\n        if log.isEnabledFor(logging.DEBUG):"),
    Mutant("logs-below-the-first-output-alone", "graph_tools", "a_backward_of_several_outputs_is_logged", "graph.executed",
           "for output in outputs}", "for output in outputs[:1]}"),
    Mutant("logs-what-outputs-share-for-each", "graph_tools", "a_backward_of_several_outputs_is_logged", "graph.executed",
           "    waiting = list(seen)",
           "    waiting = [one.node if isinstance(one, GradientEdge) else node_of(one) for one in outputs]"),
)  # fmt: skip
