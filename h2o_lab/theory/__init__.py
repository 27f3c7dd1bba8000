"""The theory of the paper (section 4, Appendix D), executable. Nothing here takes part in eviction.

**The function h changes no eviction.** Algorithm 2 scores a set by F(T) = h(sum of o_s over T) with h
non-decreasing and concave, and evicts from G, the cache and the newcomer, argmax_{v in G} F(G without v). With O
the sum over G, F(G without v) = h(O - o_v). If o_u <= o_v then O - o_u >= O - o_v, hence
h(O - o_u) >= h(O - o_v): the entry with the smallest accumulated attention is a maximiser *for every
non-decreasing h*, concave or not. Where h is strictly increasing there are no other maximisers; where h is flat
more entries tie, and the rule "of the maximisers the one with the smallest o, then the oldest" evicts the same
entry for every h. The same argument makes the k entries with the largest o a best set, found greedily, for
every h: the ratio greedy / optimum is 1, and 1 - 1/e is not needed. So h is no tuning knob, and concavity gives
no sense of redundancy: F sees a set through its sum alone. Redundancy needs an objective that sees more, such as
`FacilityLocation` or `Coverage`.

**The newcomer.** Taken literally, o_i is 0 outside of the previous cache, so the newcomer has the smallest
score of G and always goes: the first k tokens would stay for ever. What is executed, here and by the policies,
protects at least the newest entry.

**What is measured.** `search`: greedy and one-out-one-in against brute force. `checks`: monotonicity and
submodularity. `dynamics`: gamma, theta and what a stale choice costs. `process`: the guarantee itself, for H2O
on a growing text. `python -m experiments.theory` runs all of it on a real model.
"""

from h2o_lab.theory.checks import Triples, Violations, random_triples, violations
from h2o_lab.theory.dynamics import StepChanges, largest_fall, step_changes, top_sets
from h2o_lab.theory.maps import accumulated, attention_maps, candidates
from h2o_lab.theory.objectives import Coverage, FacilityLocation, Modular, Objective, Transformed
from h2o_lab.theory.process import Process, ProcessValue, h2o_process, process_value
from h2o_lab.theory.search import Exhaustive, all_subsets, cheapest_removals, greedy, one_out_one_in, optimum

__all__ = [
    "Coverage",
    "Exhaustive",
    "FacilityLocation",
    "Modular",
    "Objective",
    "Process",
    "ProcessValue",
    "StepChanges",
    "Transformed",
    "Triples",
    "Violations",
    "accumulated",
    "all_subsets",
    "attention_maps",
    "candidates",
    "cheapest_removals",
    "greedy",
    "h2o_process",
    "largest_fall",
    "one_out_one_in",
    "optimum",
    "process_value",
    "random_triples",
    "step_changes",
    "top_sets",
    "violations",
]
