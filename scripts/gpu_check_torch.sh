#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The step "torch" of gpu_check.sh: each part in a process of its own with a limit and a log, whatever the one before it
# did; a table comes last. usage: scripts/gpu_check_torch.sh BUILD OUT DEVICES [WEIGHTS]
# PARTS="tests examples bench" chooses, TESTS the files of tests; GIB (20) is the size of the benchmark's module.
set -u
build=${1:?usage: scripts/gpu_check_torch.sh BUILD OUT DEVICES [WEIGHTS]}
out=${2:?a folder}
devices=${3:-1}
weights=${4:-}
parts=${PARTS:-tests examples bench}
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
export STILLWAKE_DRIVER=${STILLWAKE_DRIVER:-cuda} NCCL_NVLS_ENABLE=0 PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$(cd "$build" && pwd)/torch_plugin/python:$root/tests/torch_plugin
table=()
failed=0

# part NAME SECONDS LINES COMMAND...: runs it, shows the last lines of its log, and notes how it ended.
part() {
  local name=$1 limit=$2 lines=$3 began=$SECONDS status
  shift 3
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  printf '\n-- %s (%s s, status %s)\n' "$name" $((SECONDS - began)) $status
  tail -n "$lines" "$out/$name.log" | cut -c1-230
  case $status in 0) told=passed ;; 77) told=skipped ;; 124 | 137) told="OUT OF TIME" failed=1 ;; *) told=FAILED failed=1 ;; esac
  table+=("$(printf '%-28s %-12s %4s s  %s' "$name" "$told" $((SECONDS - began)) "$(tail -n 1 "$out/$name.log" | cut -c1-90)")")
}
launch() { python3 -m torch.distributed.run --nproc-per-node "$devices" --master-port 29611 "$@"; }
export -f launch
export devices

if [[ " $parts " == *" tests "* ]]; then
  # Failures in short, then the summary: what stands in the log's last lines must be enough to act on.
  for name in ${TESTS:-cuda cuda_faults cuda_streams cuda_training cuda_processes}; do
    part "test_$name" 150 30 python3 -m pytest -q --tb=short --no-header -rfE --durations=3 -p no:cacheprovider \
      -o faulthandler_timeout=60 "$root/tests/torch_plugin/test_$name.py"
  done
fi
if [[ " $parts " == *" examples "* ]]; then
  for name in cuda_graph_replay frozen_base_lora global_allocator; do
    part "$name" 90 4 python3 "$root/examples/$name.py"
  done
  part fsdp2_sleep 120 6 bash -c "launch '$root/examples/fsdp2_sleep.py'"
  if [ -n "$weights" ]; then
    tokenizer=${weights%.safetensors}.tokenizer.json
    part serve_two_models 90 6 python3 "$root/examples/serve_two_models.py" --weights "$weights" --tokenizer "$tokenizer"
    part pytorch_sleep 90 10 python3 "$root/examples/pytorch_sleep.py" --weights "$weights" --tokenizer "$tokenizer"
  fi
  if [ -x "$build/examples/libtorch_train" ]; then
    part libtorch_train 90 4 "$build/examples/libtorch_train"
  fi
fi
if [[ " $parts " == *" bench "* ]]; then
  part torch_job 170 14 python3 "$root/benchmarks/torch_job_benchmark.py" --gib "${GIB:-20}" --json "$out/torch_job.json"
  if [ "$devices" -gt 1 ]; then
    part torch_job_of_ranks 170 8 bash -c "launch '$root/benchmarks/torch_job_benchmark.py' --gib '${GIB:-20}' \
      --json '$out/torch_job_of_ranks.json'"
  fi
fi
printf '\n== PyTorch, part by part\n'
printf '%s\n' "${table[@]}"
exit $failed
