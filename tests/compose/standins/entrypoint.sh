#!/bin/bash
# What compose.yaml uses of the official image's entrypoint: POSTGRES_USER, POSTGRES_DB, POSTGRES_PASSWORD or its
# file, PGDATA; a new data directory is prepared on a socket alone, then the command runs as the user postgres.
set -euo pipefail
POSTGRES_USER=${POSTGRES_USER:-postgres}
POSTGRES_DB=${POSTGRES_DB:-$POSTGRES_USER}
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA" /var/run/postgresql
    chown -R postgres "$PGDATA" /var/run/postgresql
    chmod 700 "$PGDATA"
    if [ -n "${POSTGRES_PASSWORD_FILE:-}" ] && [ -n "${POSTGRES_PASSWORD:-}" ]; then
        echo "both POSTGRES_PASSWORD and POSTGRES_PASSWORD_FILE are set" >&2
        exit 1
    fi
    if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then
        POSTGRES_PASSWORD=$(<"$POSTGRES_PASSWORD_FILE")
        export POSTGRES_PASSWORD
    fi
    exec setpriv --reuid=postgres --regid=postgres --clear-groups env HOME=/var/lib/postgresql "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    if [ -z "${POSTGRES_PASSWORD:-}" ]; then
        echo "POSTGRES_PASSWORD must be set" >&2
        exit 1
    fi
    initdb -D "$PGDATA" -U "$POSTGRES_USER" --encoding=UTF8 --locale=C.UTF-8 --auth-local=trust \
        --auth-host=scram-sha-256 --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD")
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl -D "$PGDATA" -w -o "-c listen_addresses=''" start
    [ "$POSTGRES_DB" = postgres ] || createdb -U "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -D "$PGDATA" -m fast -w stop
fi
unset POSTGRES_PASSWORD
exec "$@" -c listen_addresses='*'
