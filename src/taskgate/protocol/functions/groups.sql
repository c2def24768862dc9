-- What runs now by group, under names such as `model/gpt-5`; of these tokens, which the caller knows to be running.
CREATE OR REPLACE FUNCTION running_groups(p_alive bigint[]) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE found jsonb;
BEGIN
    WITH r AS MATERIALIZED (
        SELECT t.task_type, t.model, t.upstream, t.tenant, count(*) AS n FROM tasks t
        WHERE t.status = 'running' AND num_nulls(t.request) = 0 AND t.claim_token = ANY (p_alive)
        GROUP BY t.task_type, t.model, t.upstream, t.tenant
    )
    SELECT jsonb_object_agg(g.name, g.n) INTO found
    FROM (
        SELECT 'type/' || r.task_type AS name, sum(r.n) AS n FROM r GROUP BY r.task_type
        UNION ALL SELECT 'model/' || r.model, sum(r.n) FROM r GROUP BY r.model
        UNION ALL SELECT 'upstream/' || r.upstream, sum(r.n) FROM r GROUP BY r.upstream
        UNION ALL SELECT 'tenant/' || r.tenant, sum(r.n) FROM r GROUP BY r.tenant
    ) AS g WHERE g.name IS NOT NULL;
    RETURN coalesce(found, '{}');
END $$;

-- How many more tasks of each group may start, an element for each group that has limits. Of those that occur: the name
-- '' (no model, no upstream, no tenant) is no group. requests, tokens: what its buckets hold now, NULL without such a
-- limit; wait: seconds until a bucket that stops it has something again, NULL where only the end of a task helps.
CREATE OR REPLACE FUNCTION group_rooms(p_running jsonb, p_buckets jsonb, p_now timestamptz, p_scopes text[], p_names text[])
RETURNS TABLE (scope text, name text, room integer, wait double precision, requests double precision, requests_rate double precision,
               tokens double precision, tokens_rate double precision, tokens_most double precision, tokens_default integer)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT b.scope, b.name,
           least(b.max_concurrent - coalesce((p_running ->> (b.scope || '/' || b.name))::integer, 0), floor(b.requests),
                 CASE WHEN b.tokens < 1 THEN 0 END, 1000000000)::integer,
           greatest((1 - b.requests) / b.requests_rate, (1 - b.tokens) / b.tokens_rate),
           b.requests, b.requests_rate, b.tokens, b.tokens_rate, b.tokens_most, b.tokens_default
    FROM (
        SELECT g.scope, g.name, l.max_concurrent, l.requests_per_minute / 60 AS requests_rate, l.tokens_per_minute / 60 AS tokens_rate,
               coalesce(l.tokens_burst, greatest(1, l.tokens_per_minute)) AS tokens_most, coalesce(l.tokens_default, 0) AS tokens_default,
               bucket_level(p_buckets -> (g.scope || '/' || g.name), 'requests', l.requests_per_minute / 60,
                            coalesce(l.requests_burst, greatest(1, l.requests_per_minute / 60)), p_now) AS requests,
               bucket_level(p_buckets -> (g.scope || '/' || g.name), 'tokens', l.tokens_per_minute / 60,
                            coalesce(l.tokens_burst, greatest(1, l.tokens_per_minute)), p_now) AS tokens
        FROM (SELECT DISTINCT u.scope, u.name FROM unnest(p_scopes, p_names) AS u (scope, name) WHERE u.name <> '') AS g
        CROSS JOIN LATERAL (
            SELECT l.* FROM limits l WHERE l.scope = g.scope AND l.name IN (g.name, '*') ORDER BY l.name = '*' LIMIT 1
        ) AS l
    ) AS b
$$;

-- The groups of which nothing may start now: their limit is reached, a bucket is empty, or they cool down. An element a
-- group in the first three answers (wait: seconds until that ends by itself); then the names by scope.
CREATE OR REPLACE FUNCTION full_groups(
    p_running jsonb, p_buckets jsonb, p_now timestamptz, OUT scopes text[], OUT names text[], OUT waits double precision[],
    OUT types text[], OUT models text[], OUT upstreams text[], OUT tenants text[]
)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    WITH named AS MATERIALIZED (
        SELECT split_part(k, '/', 1) AS scope, substr(k, strpos(k, '/') + 1) AS name
        FROM (SELECT jsonb_object_keys(p_running) AS k UNION ALL SELECT jsonb_object_keys(p_buckets)) AS k
        UNION ALL
        SELECT l.scope, l.name FROM limits l WHERE l.max_concurrent = 0 AND l.name <> '*'
        UNION ALL  -- each one that has no limit of its own is paused
        SELECT l.scope, CASE l.scope WHEN 'type' THEN f.task_type WHEN 'model' THEN f.model WHEN 'upstream' THEN f.upstream ELSE f.tenant END
        FROM limits l CROSS JOIN flows f WHERE l.max_concurrent = 0 AND l.name = '*'
    ), shut AS (
        SELECT g.scope, g.name, max(g.wait) AS wait
        FROM (
            SELECT g.scope, g.name, g.wait
            FROM group_rooms(p_running, p_buckets, p_now, (SELECT array_agg(n.scope) FROM named n), (SELECT array_agg(n.name) FROM named n)) AS g
            WHERE g.room <= 0
            UNION ALL
            SELECT c.scope, c.name, extract(epoch FROM c.until - p_now) FROM cooldowns c WHERE c.until > p_now
        ) AS g
        GROUP BY g.scope, g.name
    )
    SELECT array_agg(s.scope), array_agg(s.name), array_agg(s.wait),
           coalesce(array_agg(s.name) FILTER (WHERE s.scope = 'type'), '{}'), coalesce(array_agg(s.name) FILTER (WHERE s.scope = 'model'), '{}'),
           coalesce(array_agg(s.name) FILTER (WHERE s.scope = 'upstream'), '{}'), coalesce(array_agg(s.name) FILTER (WHERE s.scope = 'tenant'), '{}')
    INTO scopes, names, waits, types, models, upstreams, tenants FROM shut s;
END $$;

-- Of the groups with limits that these flows are in: rooms, buckets and names, an element a group; room_at: for each
-- scope and flow where the group stands there; 0: none.
CREATE OR REPLACE FUNCTION rooms_of(
    p_running jsonb, p_buckets jsonb, p_now timestamptz, p_types text[], p_models text[], p_upstreams text[], p_tenants text[],
    OUT names text[], OUT rooms integer[], OUT requests double precision[], OUT tokens double precision[], OUT tokens_rate double precision[],
    OUT tokens_most double precision[], OUT tokens_default integer[], OUT room_at integer[][]
)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_hashjoin = on AS $$
BEGIN
    WITH member AS MATERIALIZED (
        SELECT 1 AS k, 'type' AS scope, u.name, u.ord FROM unnest(p_types) WITH ORDINALITY AS u (name, ord)
        UNION ALL SELECT 2, 'model', u.name, u.ord FROM unnest(p_models) WITH ORDINALITY AS u (name, ord)
        UNION ALL SELECT 3, 'upstream', u.name, u.ord FROM unnest(p_upstreams) WITH ORDINALITY AS u (name, ord)
        UNION ALL SELECT 4, 'tenant', u.name, u.ord FROM unnest(p_tenants) WITH ORDINALITY AS u (name, ord)
    ), room AS MATERIALIZED (
        SELECT g.*, row_number() OVER ()::integer AS place
        FROM group_rooms(p_running, p_buckets, p_now, (SELECT array_agg(m.scope) FROM member m), (SELECT array_agg(m.name) FROM member m)) AS g
    ), place AS (
        SELECT array_agg(s.places ORDER BY s.k) AS at
        FROM (SELECT m.k, array_agg(coalesce(r.place, 0) ORDER BY m.ord) AS places
              FROM member m LEFT JOIN room r ON r.scope = m.scope AND r.name = m.name GROUP BY m.k) AS s
    )
    SELECT array_agg(r.scope || '/' || r.name ORDER BY r.place), array_agg(r.room ORDER BY r.place), array_agg(r.requests ORDER BY r.place),
           array_agg(r.tokens ORDER BY r.place), array_agg(r.tokens_rate ORDER BY r.place), array_agg(r.tokens_most ORDER BY r.place),
           array_agg(r.tokens_default ORDER BY r.place), (SELECT p.at FROM place p)
    INTO names, rooms, requests, tokens, tokens_rate, tokens_most, tokens_default, room_at FROM room r;
END $$;
