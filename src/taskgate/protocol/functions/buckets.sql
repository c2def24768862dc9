-- Rate limits are buckets that fill up at the rate, to their size, and from which claim takes under its lock: requests,
-- one a start, and tokens, by estimate. What a bucket holds stands in the ledger, as
-- {"model/gpt-5": {"requests": 3.5, "tokens": 120000, "at": seconds since 1970}}; one that is not there is full.

-- What a bucket holds at p_now; NULL when there is no such limit.
CREATE OR REPLACE FUNCTION bucket_level(
    p_bucket jsonb, p_kind text, p_rate double precision, p_most double precision, p_now timestamptz
) RETURNS double precision
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN p_rate IS NULL THEN NULL
                WHEN p_bucket ->> p_kind IS NULL THEN p_most
                ELSE least(p_most, (p_bucket ->> p_kind)::double precision
                           + p_rate * greatest(0, extract(epoch FROM p_now)::double precision - (p_bucket ->> 'at')::double precision)) END
$$;

-- How many tokens a call may take: a quarter of the request's bytes, and what it allows the answer to have.
CREATE OR REPLACE FUNCTION token_estimate(p_request jsonb, p_default integer) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ceil(octet_length(p_request::text) / 4.0) + coalesce(
        (SELECT (p_request ->> k)::double precision FROM unnest(ARRAY['max_completion_tokens', 'max_tokens', 'max_output_tokens']) AS k
         WHERE jsonb_typeof(p_request -> k) = 'number' AND (p_request ->> k)::numeric BETWEEN 0 AND 1e9 LIMIT 1), p_default)
$$;

-- Settles the reservations of tasks that run no more: what a call used (usage.total_tokens of its result) stays taken,
-- even if it is more than was reserved; the rest goes back; of an attempt without a result, all. No settle call has to
-- know of this, whoever ends a task and however. The caller holds the claim lock; p_alive are the tokens that run.
-- p_all: look at every reservation, else at those that ran by the ledger.
CREATE OR REPLACE FUNCTION settle_tokens(p_alive bigint[], p_now timestamptz, p_all boolean, INOUT ledger claim_ledger)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    credit record;
    bucket record;
BEGIN
    FOR credit IN
        WITH over AS (
            DELETE FROM token_reservations r
            WHERE (p_all OR r.token = ANY (ledger.live) OR r.token > ledger.max_token) AND NOT r.token = ANY (p_alive)
            RETURNING r.*
        )
        SELECT g.name, split_part(g.name, '/', 1) AS scope, substr(g.name, strpos(g.name, '/') + 1) AS member,
               sum(g.amount - coalesce(u.used, CASE WHEN u.done THEN g.amount ELSE 0 END)) AS amount
        FROM over o
        LEFT JOIN LATERAL (
            SELECT true AS done, CASE WHEN jsonb_typeof(t.result -> 'usage' -> 'total_tokens') = 'number'
                                      THEN (t.result -> 'usage' ->> 'total_tokens')::double precision END AS used
            FROM tasks t WHERE t.task_id = o.task_id AND t.settled_token = o.token AND t.status || '' = 'completed'
        ) AS u ON true
        CROSS JOIN LATERAL unnest(o.groups, o.amounts) AS g (name, amount)
        GROUP BY g.name
    LOOP
        SELECT r.* INTO bucket FROM group_rooms('{}', ledger.buckets, p_now, ARRAY[credit.scope], ARRAY[credit.member]) AS r;
        CONTINUE WHEN bucket.tokens IS NULL;  -- the limit is gone
        ledger.buckets := ledger.buckets || jsonb_build_object(credit.name, jsonb_build_object(
            'requests', bucket.requests, 'tokens', least(bucket.tokens_most, bucket.tokens + credit.amount), 'at', extract(epoch FROM p_now)));
    END LOOP;
END $$;

-- Forgets buckets that are full, and those of limits that are gone.
CREATE OR REPLACE FUNCTION open_buckets(p_buckets jsonb, p_now timestamptz) RETURNS jsonb
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce(jsonb_object_agg(b.name, b.bucket), '{}')
    FROM jsonb_each(p_buckets) AS b (name, bucket)
    CROSS JOIN LATERAL (
        SELECT l.* FROM limits l
        WHERE l.scope = split_part(b.name, '/', 1) AND l.name IN (substr(b.name, strpos(b.name, '/') + 1), '*')
        ORDER BY l.name = '*' LIMIT 1
    ) AS l
    WHERE bucket_level(b.bucket, 'requests', l.requests_per_minute / 60, 1e300, p_now) < coalesce(l.requests_burst, greatest(1, l.requests_per_minute / 60))
       OR bucket_level(b.bucket, 'tokens', l.tokens_per_minute / 60, 1e300, p_now) < coalesce(l.tokens_burst, greatest(1, l.tokens_per_minute))
$$;
