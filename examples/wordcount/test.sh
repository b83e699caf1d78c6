#!/bin/sh
# The tests of wordcount. Prints one line for each; fails when one failed.
# Run it from anywhere: sh test.sh
cd "$(dirname "$0")" || exit 2
. ./cases.sh
test "$failed" -eq 0
