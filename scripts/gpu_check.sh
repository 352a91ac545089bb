#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds on a machine with a GPU and runs what needs one: the gpu suites, the demo, the benchmarks, PyTorch; the tables
# come last. DEVICES=2 adds what needs two GPUs. The step "sanitize" runs small parts of the suites under compute-sanitizer.
# usage: scripts/gpu_check.sh OUT [WEIGHTS [DEMO_COPIES [DEVICES]]]   STEPS="tests sanitize demo bench torch" chooses; OUT is
# a folder.
set -u
out=${1:?usage: scripts/gpu_check.sh OUT [WEIGHTS [DEMO_COPIES [DEVICES]]]}
weights=${2:-}
copies=${3:-1}
devices=${4:-${DEVICES:-1}}
steps=${STEPS:-tests sanitize demo bench torch}
build=build-gpu
mkdir -p "$out"
export STILLWAKE_DRIVER=cuda NCCL_NVLS_ENABLE=0
say() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }

say build
[ -f $build/build.ninja ] || meson setup $build --buildtype release >"$out/setup.log" 2>&1 || { tail -20 "$out/setup.log"; exit 1; }
ninja -C $build -k 0 >"$out/build.log" 2>&1 || { grep -E 'error|FAILED' "$out/build.log" | head -40 | cut -c1-250; exit 1; }

failed=0
case " $steps " in *" tests "*)
  say "gpu suite"
  other=() # the step torch runs these by itself, with a limit and a log for each
  case " $steps " in *" torch "*) other=(--no-suite gpu_python) ;; esac
  meson test -C $build --suite gpu "${other[@]}" --print-errorlogs --num-processes 1 >"$out/gpu.log" 2>&1 || failed=1
  cp $build/meson-logs/testlog.txt "$out/gpu_tests.log"
  grep -E '^ *[0-9]+/[0-9]+ |FAILED  \]' "$out/gpu.log" | cut -c1-200 ;;
esac
case " $steps " in *" sanitize "*)
  say "compute-sanitizer"
  # Errors that calls answer are what many tests are about: it looks at kernels and copies only.
  sanitize() {
    local name=$1 && shift
    timeout 200 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 "$@" >"$out/sanitize_$name.log" 2>&1
    local status=$?
    printf '%-12s status %s  %s\n' "$name" $status "$(grep -c 'OK ]' "$out/sanitize_$name.log") tests, $(tail -1 "$out/sanitize_$name.log")"
    [ $status = 0 ] || failed=1
  }
  sanitize transfer $build/tests/transfer/transfer_tests
  sanitize shard $build/tests/shard/shard_tests --gtest_filter='ShardTest.*:Content.*:PageSuppl*:Swaps.*:Staged.*:LiveRanges.*'
  [ -z "$weights" ] || sanitize demo $build/examples/zero_pointer_wake --weights "$weights" --cycles 1 ;;
esac
case " $steps " in *" demo "*)
  if [ -n "$weights" ]; then
    say demo
    $build/examples/zero_pointer_wake --weights "$weights" --copies "$copies" --cycles 2 >"$out/demo.log" 2>&1 || failed=1
    tail -25 "$out/demo.log" | cut -c1-160
  fi ;;
esac
case " $steps " in *" bench "*)
  say benchmarks
  for program in page_kernels_benchmark heap_benchmark; do
    [ -x $build/benchmarks/$program ] && timeout 120 $build/benchmarks/$program >"$out/$program.log" 2>&1
    tail -25 "$out/$program.log" | cut -c1-150
  done
  timeout 300 $build/benchmarks/transition_benchmark --devices "$devices" --json "$out/transition.json" \
    >"$out/transition.log" 2>&1 || failed=1
  cut -c1-330 "$out/transition.log" ;;
esac
case " $steps " in *" torch "*)
  if [ -d $build/torch_plugin/python ]; then
    say "PyTorch"
    scripts/gpu_check_torch.sh $build "$out" "$devices" "$weights" || failed=1
  fi ;;
esac
say "done, failed: $failed"
exit $failed
