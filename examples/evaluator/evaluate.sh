#!/bin/sh
# Runs the evaluator's own cases on the sealed tree and writes the share that passed.
# Ends 0 whenever it could judge: the verdict is in the result, a non-zero end means it broke.
set -eu
result=$ESF_RESULT
unset ESF_RESULT
. ./cases.sh
total=$((passed + failed))
if [ "$failed" -eq 0 ]; then verdict=pass; else verdict=fail; fi
reward=$(awk "BEGIN { printf \"%.4f\", $passed / $total }")
printf '{"reward":%s,"verdict":"%s","metrics":{"passed":%d,"failed":%d}}\n' \
    "$reward" "$verdict" "$passed" "$failed" > "$result"
