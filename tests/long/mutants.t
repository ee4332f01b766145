#!/bin/sh
# time limit: 7200 s
# Three hundred broken plugins: tests/contract/mutants.t. MUTANTS_SEED repeats a run.
MUTANTS=${MUTANTS:-300} exec sh "$GRADCOMP_SRC/tests/contract/mutants.t"
