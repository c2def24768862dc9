#!/usr/bin/env bash
# A worker for `llm` tasks in bash, psql and curl, over the same SQL functions as the others: claim, call, renew, settle.
# One task at a time. Settings: DATABASE_URL, OPENAI_BASE_URL, OPENAI_API_KEY, TASKGATE_LLM_MODEL, TASKGATE_LEASE_SECONDS,
# TASKGATE_TIMEOUT_SECONDS. docs/how-to/write-a-worker.md walks through it.
set -uo pipefail
lease=${TASKGATE_LEASE_SECONDS:-60} base=${OPENAI_BASE_URL:-https://api.openai.com/v1}
me="$(uname -n):$$:$RANDOM" dir=$(mktemp -d) stopping=0 call=
trap 'rm -rf "$dir"' EXIT
trap 'stopping=$((stopping + 1)); [ $stopping -lt 2 ] || stop_call released' TERM INT # the second signal stops the call

# $1: statements for psql, with :'variables'; the rest: their values, name=value. A file's content comes in by \set.
sql() {
    local statements=$1
    shift
    PGCONNECT_TIMEOUT=5 timeout "$((lease < 30 ? lease : 30))" psql "$DATABASE_URL" -XqAt -F ' ' -v ON_ERROR_STOP=1 \
        -v me="$me" -v lease="$lease s" -v id="${id:-}" -v token="${token:-0}" "${@/#/--set=}" <<<"$statements"
}
clock() { cut -d. -f1 /proc/uptime; } # runs on through suspend, as the lease does

claim() { # a lease counts from before the call; the request goes to a file, its keys in their order
    sent=$(clock)
    sql "SELECT concat_ws(' ', token, coalesce(least(timeout_seconds, :limit), :limit), task_id || E'\\n' || request)
         FROM taskgate.claim(:'me', 1, '{}', :'lease', '{llm}') WHERE task_id IS NOT NULL" limit="${TASKGATE_TIMEOUT_SECONDS:-600}" >"$dir/claimed"
    read -r token limit id <"$dir/claimed" && tail -n +2 "$dir/claimed" >"$dir/request"
}

body() { # json_each keeps the order; a prompt becomes messages
    sql "\set request \`cat '$dir/request'\`
         SELECT json_object_agg(key, value) FROM (
             SELECT * FROM json_each(:'request') WHERE key NOT IN ('prompt', 'system', 'images', 'stream')
             UNION ALL SELECT 'model', to_json(:'model'::text) WHERE NOT :'request'::jsonb ? 'model'
             UNION ALL SELECT 'messages', json_agg(json_build_object('role', role, 'content', content)) FROM (
                 SELECT 'system', r -> 'system' FROM (SELECT :'request'::jsonb) AS g (r) WHERE r ? 'system'
                 UNION ALL SELECT 'user', CASE WHEN NOT r ? 'images' THEN r -> 'prompt' ELSE jsonb_build_object('type', 'text', 'text', r -> 'prompt') || (
                     SELECT jsonb_agg(jsonb_build_object('type', 'image_url', 'image_url', jsonb_build_object('url', u)))
                     FROM jsonb_array_elements(r -> 'images') AS u) END FROM (SELECT :'request'::jsonb) AS g (r)) AS m (role, content)
             WHERE :'request'::jsonb ? 'prompt' HAVING count(*) > 0) AS parts" model="${TASKGATE_LLM_MODEL:-}" >"$dir/body"
}

stop_call() { why=$1 && [ -z "$call" ] || kill "$call" 2>/dev/null; } # curl closes the connection: the provider sees it

renew() { # at a third of the lease; ends the call if the task is not ours any more or the lease cannot be kept
    local now answer
    now=$(clock)
    [ $((now - sent)) -ge $((lease / 3)) ] || return 0
    answer=$(sql "SELECT outcome FROM taskgate.renew(:'me', ARRAY[:'id'], ARRAY[:token::bigint], :'lease', $stopping > 0)")
    case $answer in
    done) sent=$now ;;
    cancel) stop_call cancelled ;;
    stale) stop_call lost ;;
    *) [ $(($(clock) - sent)) -lt $((lease - lease / 10 - 1)) ] || stop_call lost ;;
    esac
}

fail() { # code, words, retry
    sql "SELECT outcome FROM taskgate.fail(ARRAY[:'id'], ARRAY[:token::bigint], ARRAY[:'words'], ARRAY[:'code'], '{NULL}',
         ARRAY[:retry], '{NULL}')" code="$1" words="$2" retry="$3"
}
release() { # code, reason, seconds: costs no attempt
    sql "SELECT outcome FROM taskgate.release(ARRAY[:'id'], ARRAY[:token::bigint], ARRAY[:'delay'::interval], ARRAY[:'code'], ARRAY[:'words'], '{NULL}')" \
        code="$1" words="$2" delay="$3 s"
}
complete() { # only an answer with a finish_reason is one
    sql "\set answer \`cat '$dir/answer'\`
         SELECT c.outcome FROM (SELECT :'answer'::json AS a) AS given, taskgate.complete(ARRAY[:'id'], ARRAY[:token::bigint],
             ARRAY[json_build_object('text', coalesce(a #>> '{choices,0,message,content}', ''), 'message', a #> '{choices,0,message}',
                   'finish_reason', a #> '{choices,0,finish_reason}', 'model', a -> 'model', 'usage', a -> 'usage')::text]) AS c
         WHERE a #>> '{choices,0,finish_reason}' <> 'content_filter'"
}

said() { sql "\set answer \`cat '$dir/answer'\` \\\\ SELECT left(:'answer'::json #>> '{error,message}', 500)" 2>/dev/null; }
settle() { # curl's exit code, the provider's status; called again while the answer is none, or busy (somebody holds the row)
    case $why:$1:$2 in
    lost:*) : ;; # nothing that we write counts
    cancelled:*) fail cancelled cancelled false ;;
    released:*) release released 'the worker stopped' 0 ;;
    :28:*) fail timeout "the attempt took longer than $limit s" true ;;
    :0:200) complete | grep . || { grep -q '"content_filter"' "$dir/answer" && fail content_filtered 'the content filter stopped the answer' false; } ||
        fail incomplete_answer 'the answer is incomplete' true ;;
    :0:429) release throttled 'the provider answered 429' "$(grep -i '^retry-after: *[0-9]' "$dir/headers" | tr -dc 0-9. | grep . || echo 10)" ;;
    :0:408 | :0:409 | :0:5*) fail provider_error "the provider answered $2: $(said)" true ;;
    :0:[34]*) fail provider_refused "the provider answered $2: $(said)" false ;;
    *) fail provider_unavailable "no answer from the provider (curl $1, status $2)" true ;;
    esac
}

until sql "SELECT taskgate.register_worker(:'me', 'bash', '1', '$(uname -n)', $$, 1, '{llm}', '{NULL}', '{NULL}')" >/dev/null || [ $stopping != 0 ]; do sleep 1; done
while [ $stopping = 0 ]; do
    claim || { sleep "0.$((RANDOM % 5 + 3))"; continue; } # a signal to the whole group ends the sleep, too
    body || { fail invalid_request 'the request cannot be sent' false >/dev/null; continue; }
    why=
    curl -sS --max-time "$limit" -o "$dir/answer" -D "$dir/headers" -w '%{http_code}' -H 'content-type: application/json' \
        -H "authorization: Bearer ${OPENAI_API_KEY:-none}" --data-binary @"$dir/body" "$base/chat/completions" >"$dir/status" 2>/dev/null &
    call=$!
    while kill -0 "$call" 2>/dev/null; do renew && sleep 0.1; done
    wait "$call"; settled=$? call=
    until settle "$settled" "$(cat "$dir/status")" >"$dir/verdict"; grep -qvx busy "$dir/verdict" || [ "$why" = lost ] || [ $(($(clock) - sent)) -gt "$lease" ]; do sleep 0.2; done
done
sql "SELECT taskgate.forget_worker(:'me')" >/dev/null
