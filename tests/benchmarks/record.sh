#!/bin/bash
# The record: every benchmark beside all peers, five times; then the report and the page of the documentation.
#     PYTHON=python3.13 tests/benchmarks/record.sh FOLDER [arguments of run.py all: --calm 10, --resume, --only jobs ...]
# FOLDER gets the virtual environments, record.json and report.html, which are written after each benchmark.
set -eu
folder=$(realpath -m "${1:?usage: record.sh FOLDER [arguments of run.py all]}")
shift
cd "$(dirname "$0")/../.."
tests/benchmarks/setup_venvs.sh "$folder" pgbus sql pgqueuer procrastinate oban djtasksdb celery
export BENCH_PEERS=$folder
python=$folder/pgbus/bin/python
status=0
"$python" tests/benchmarks/run.py all --peers pgqueuer,procrastinate,oban,django-tasks-db,celery \
    --json "$folder/record.json" --html "$folder/report.html" "$@" || status=$?
"$python" -m tests.benchmarks.page "$folder/record.json" --docs
exit $status
