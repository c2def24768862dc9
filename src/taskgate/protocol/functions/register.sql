-- A worker says what it is. Registered task types are durable: the API takes them while no worker runs.
-- A NULL schema leaves the one that is known.
CREATE OR REPLACE FUNCTION register_worker(
    p_worker text, p_language text, p_version text, p_host text, p_pid integer, p_slots integer, p_types text[],
    p_schemas text[] DEFAULT NULL, p_descriptions text[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO task_types AS k (name, request_schema, description)
    SELECT g.name, g.schema::jsonb, coalesce(g.description, '')
    FROM unnest(p_types, p_schemas, p_descriptions) AS g (name, schema, description)
    ORDER BY g.name
    ON CONFLICT (name) DO UPDATE
    SET request_schema = coalesce(excluded.request_schema, k.request_schema),
        description = coalesce(nullif(excluded.description, ''), k.description), updated_at = clock_timestamp()
    WHERE (k.request_schema, k.description) IS DISTINCT FROM
          (coalesce(excluded.request_schema, k.request_schema), coalesce(nullif(excluded.description, ''), k.description));
    INSERT INTO workers AS w (worker_id, language, version, host, pid, slots, types)
    VALUES (p_worker, p_language, p_version, p_host, p_pid, p_slots, p_types)
    ON CONFLICT (worker_id) DO UPDATE SET slots = excluded.slots, types = excluded.types, seen_at = clock_timestamp();
END $$;

-- The end of a worker. What it freed in its drain, others may use.
CREATE OR REPLACE FUNCTION forget_worker(p_worker text) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    DELETE FROM workers WHERE worker_id = p_worker;
    SELECT announce_room();
$$;
