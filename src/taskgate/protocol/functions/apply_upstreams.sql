-- Makes the table of upstreams what this list says (a JSON array of objects with the table's columns): whoever is not
-- in it goes. Its limits go to `limits`, whatever stood there; one that was set live stays where the list names none.
-- Answers what became of each: `added`, `changed` (also: its limit was another), `same` or `removed`.
CREATE OR REPLACE FUNCTION apply_upstreams(p_upstreams jsonb) RETURNS TABLE (name text, change text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    before jsonb;
    repaired text[];
BEGIN
    LOCK TABLE upstreams IN SHARE ROW EXCLUSIVE MODE;  -- readers go on; a second apply waits
    SELECT coalesce(jsonb_object_agg(u.name, to_jsonb(u) - 'updated_at'), '{}') INTO before FROM upstreams u;
    DELETE FROM upstreams u WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(p_upstreams) AS g (x) WHERE g.x ->> 'name' = u.name);
    INSERT INTO upstreams AS u (name, api, base_url, key_env, key_file, models, model, project, location, credentials_file,
                                max_concurrent, requests_per_minute, tokens_per_minute, enabled)
    SELECT g.name, g.api, coalesce(g.base_url, ''), coalesce(g.key_env, ''), coalesce(g.key_file, ''),
           coalesce(g.models, '{}'), coalesce(g.model, ''), coalesce(g.project, ''), coalesce(g.location, ''),
           coalesce(g.credentials_file, ''), g.max_concurrent, g.requests_per_minute, g.tokens_per_minute,
           coalesce(g.enabled, true)
    FROM jsonb_populate_recordset(NULL::upstreams, p_upstreams) AS g
    ON CONFLICT (name) DO UPDATE
    SET api = excluded.api, base_url = excluded.base_url, key_env = excluded.key_env, key_file = excluded.key_file,
        models = excluded.models, model = excluded.model, project = excluded.project, location = excluded.location,
        credentials_file = excluded.credentials_file, max_concurrent = excluded.max_concurrent,
        requests_per_minute = excluded.requests_per_minute, tokens_per_minute = excluded.tokens_per_minute,
        enabled = excluded.enabled, updated_at = clock_timestamp()
    WHERE to_jsonb(u) - 'updated_at' IS DISTINCT FROM to_jsonb(excluded) - 'updated_at';
    DELETE FROM limits l
    WHERE l.scope = 'upstream' AND num_nonnulls(before -> l.name ->> 'max_concurrent', before -> l.name ->> 'requests_per_minute',
                                                before -> l.name ->> 'tokens_per_minute') > 0
      AND NOT EXISTS (SELECT FROM upstreams u WHERE u.name = l.name
                      AND num_nonnulls(u.max_concurrent, u.requests_per_minute, u.tokens_per_minute) > 0);
    WITH put AS (
        INSERT INTO limits AS l (scope, name, max_concurrent, requests_per_minute, tokens_per_minute)
        SELECT 'upstream', u.name, u.max_concurrent, u.requests_per_minute, u.tokens_per_minute FROM upstreams u
        WHERE num_nonnulls(u.max_concurrent, u.requests_per_minute, u.tokens_per_minute) > 0
        ON CONFLICT (scope, name) DO UPDATE
        SET max_concurrent = excluded.max_concurrent, requests_per_minute = excluded.requests_per_minute,
            tokens_per_minute = excluded.tokens_per_minute, updated_at = clock_timestamp()
        WHERE (l.max_concurrent, l.requests_per_minute, l.tokens_per_minute)
              IS DISTINCT FROM (excluded.max_concurrent, excluded.requests_per_minute, excluded.tokens_per_minute)
        RETURNING l.name
    )
    SELECT array_agg(put.name) INTO repaired FROM put;
    PERFORM pg_notify(current_schema() || '_ready', '');
    RETURN QUERY
    SELECT coalesce(u.name, b.key),
           CASE WHEN u.name IS NULL THEN 'removed' WHEN b.key IS NULL THEN 'added'
                WHEN b.value = to_jsonb(u) - 'updated_at' AND u.name = ANY (repaired) IS NOT TRUE THEN 'same' ELSE 'changed' END
    FROM upstreams u FULL JOIN jsonb_each(before) AS b (key, value) ON b.key = u.name
    ORDER BY 1;
END $$;
