#!/bin/bash
# One virtual environment per system below the folder given, which BENCH_PEERS then names; outside the repository.
#     PYTHON=python3.13 tests/benchmarks/setup_venvs.sh /tmp/peers [NAME ...]
# `pgbus` is our side's, with what the report needs. All are made with one Python: another version moves the ratios.
# django-tasks-db needs 3.12 or newer. Celery's Redis is the system's: `redis-server` must be on the PATH.
set -u
folder=$(realpath -m "${1:?usage: setup_venvs.sh FOLDER [NAME ...]}")
shift
root=$(realpath "$(dirname "$0")/../..")
wanted=${*:-pgbus sql pgqueuer procrastinate oban chancy djtasksdb celery}
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

make pgbus -e "$root[embedded,orjson]" 'psycopg[binary]' 'matplotlib>=3.10' 'py-spy>=0.4'
make sql 'psycopg[binary]' orjson
make pgqueuer 'pgqueuer[asyncpg,psycopg]' uvloop 'psycopg[binary]'
make procrastinate procrastinate 'psycopg[binary,pool]'
make oban oban uvloop 'psycopg[binary,pool]'
make chancy 'chancy[cli]' 'psycopg[binary,pool]'
make djtasksdb django-tasks-db 'django>=6.0' 'psycopg[binary]'
make celery 'celery[redis]'
exit $failed
