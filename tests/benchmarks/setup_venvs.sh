#!/bin/bash
# One virtual environment per peer below the folder given, which BENCH_PEERS then names; outside the repository.
#     PYTHON=python3.13 tests/benchmarks/setup_venvs.sh /tmp/peers [NAME ...]
# Take the Python that our side runs on: another version moves the ratios. django-tasks-db needs 3.12 or newer.
set -u
folder=$(realpath -m "${1:?usage: setup_venvs.sh FOLDER [NAME ...]}")
shift
wanted=${*:-sql pgqueuer procrastinate oban chancy djtasksdb}
python=${PYTHON:-python3}
mkdir -p "$folder/logs"
failed=0

make() {
    name=$1
    shift
    case " $wanted " in *" $name "*) ;; *) return ;; esac
    [ -d "$folder/$name" ] || "$python" -m venv "$folder/$name"
    if "$folder/$name/bin/pip" install --quiet --disable-pip-version-check "$@" >"$folder/logs/$name.log" 2>&1; then
        echo "$name ok"
    else
        echo "$name failed:"
        tail -3 "$folder/logs/$name.log"
        failed=1
    fi
}

make sql 'psycopg[binary]' orjson
make pgqueuer 'pgqueuer[asyncpg,psycopg]' uvloop 'psycopg[binary]'
make procrastinate procrastinate 'psycopg[binary,pool]'
make oban oban uvloop 'psycopg[binary,pool]'
make chancy 'chancy[cli]' 'psycopg[binary,pool]'
make djtasksdb django-tasks-db 'django>=6.0' 'psycopg[binary]'
exit $failed
