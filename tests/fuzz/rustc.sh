#!/bin/bash
# Stands in for rustc while run.sh builds: gives the project's own crates libFuzzer's coverage, which a stable compiler takes
# as flags of LLVM (clang's -fsanitize=fuzzer-no-link). Must leave every other crate as it is: then cargo shares it with
# the workspace's other builds.
case ${CARGO_PKG_NAME-} in
  fdbroker*)
    set -- "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
      -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
      -Cllvm-args=-sanitizer-coverage-trace-compares ;;
esac
exec "$@"
