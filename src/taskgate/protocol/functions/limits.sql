-- Sets the limit of the whole fleet at once; running calls finish. 0 pauses.
CREATE OR REPLACE FUNCTION set_limit(p_limit integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE settings SET max_concurrent = p_limit, updated_at = clock_timestamp();
    PERFORM pg_notify(current_schema() || '_ready', '');
END $$;

-- Takes over values from the environment of `taskgate migrate`, but only those that changed since it last
-- saw them: a limit set live survives a deploy that did not change the setting.
CREATE OR REPLACE FUNCTION configure(p_configured jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE settings s SET
        max_concurrent = CASE WHEN p_configured -> 'max_concurrent' IS DISTINCT FROM s.configured -> 'max_concurrent'
            THEN (p_configured ->> 'max_concurrent')::integer ELSE s.max_concurrent END,
        max_attempts = CASE WHEN p_configured -> 'max_attempts' IS DISTINCT FROM s.configured -> 'max_attempts'
            THEN (p_configured ->> 'max_attempts')::integer ELSE s.max_attempts END,
        max_throttle = CASE WHEN p_configured -> 'max_throttle' IS DISTINCT FROM s.configured -> 'max_throttle'
            THEN (p_configured ->> 'max_throttle')::double precision * interval '1 second' ELSE s.max_throttle END,
        result_ttl = CASE WHEN p_configured -> 'result_ttl' IS DISTINCT FROM s.configured -> 'result_ttl'
            THEN (p_configured ->> 'result_ttl')::double precision * interval '1 second' ELSE s.result_ttl END,
        configured = p_configured, updated_at = clock_timestamp();
    PERFORM pg_notify(current_schema() || '_ready', '');
END $$;
