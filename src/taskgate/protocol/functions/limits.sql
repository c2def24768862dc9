-- Sets the limit of the whole fleet at once; running calls finish. 0 pauses.
CREATE OR REPLACE FUNCTION set_limit(p_limit integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE settings SET max_concurrent = p_limit, updated_at = clock_timestamp();
    PERFORM pg_notify(current_schema() || '_ready', '');
END $$;

-- Sets how many tasks of one group run at once in the whole fleet: scope `type`, `model`, `upstream` or `tenant`; the
-- name `*` means each one that has no limit of its own. Running calls finish. 0 pauses.
CREATE OR REPLACE FUNCTION set_limit(p_scope text, p_name text, p_limit integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO limits (scope, name, max_concurrent) VALUES (p_scope, p_name, p_limit)
    ON CONFLICT (scope, name) DO UPDATE SET max_concurrent = excluded.max_concurrent, updated_at = clock_timestamp();
    PERFORM pg_notify(current_schema() || '_ready', '');
END $$;

-- Sets how many calls of one group may start a minute, and how many tokens they may take: buckets, see buckets.sql.
-- NULL: no such limit; burst NULL: what a second brings (requests), what a minute brings (tokens).
CREATE OR REPLACE FUNCTION set_rate(
    p_scope text, p_name text, p_requests double precision, p_requests_burst double precision DEFAULT NULL,
    p_tokens double precision DEFAULT NULL, p_tokens_burst double precision DEFAULT NULL, p_tokens_default integer DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO limits (scope, name, requests_per_minute, requests_burst, tokens_per_minute, tokens_burst, tokens_default)
    VALUES (p_scope, p_name, p_requests, p_requests_burst, p_tokens, p_tokens_burst, p_tokens_default)
    ON CONFLICT (scope, name) DO UPDATE
    SET requests_per_minute = excluded.requests_per_minute, requests_burst = excluded.requests_burst,
        tokens_per_minute = excluded.tokens_per_minute, tokens_burst = excluded.tokens_burst,
        tokens_default = excluded.tokens_default, updated_at = clock_timestamp();
    PERFORM pg_notify(current_schema() || '_ready', '');
END $$;

-- Takes the limits of a group away. Answers whether it had any.
CREATE OR REPLACE FUNCTION remove_limit(p_scope text, p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM limits l WHERE l.scope = p_scope AND l.name = p_name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify(current_schema() || '_ready', '');
    RETURN true;
END $$;

-- Takes over values from the environment of `taskgate migrate`, but only those that are given and changed since it last
-- saw them: a limit set live survives a deploy that did not change the setting, or has none.
CREATE OR REPLACE FUNCTION configure(p_configured jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    SELECT s.configured || p_configured INTO p_configured FROM settings s FOR UPDATE;
    UPDATE settings s SET
        max_concurrent = CASE WHEN p_configured -> 'max_concurrent' IS DISTINCT FROM s.configured -> 'max_concurrent'
            THEN (p_configured ->> 'max_concurrent')::integer ELSE s.max_concurrent END,
        max_attempts = CASE WHEN p_configured -> 'max_attempts' IS DISTINCT FROM s.configured -> 'max_attempts'
            THEN (p_configured ->> 'max_attempts')::integer ELSE s.max_attempts END,
        max_throttle = CASE WHEN p_configured -> 'max_throttle' IS DISTINCT FROM s.configured -> 'max_throttle'
            THEN (p_configured ->> 'max_throttle')::double precision * interval '1 second' ELSE s.max_throttle END,
        result_ttl = CASE WHEN p_configured -> 'result_ttl' IS DISTINCT FROM s.configured -> 'result_ttl'
            THEN (p_configured ->> 'result_ttl')::double precision * interval '1 second' ELSE s.result_ttl END,
        ageing = CASE WHEN p_configured -> 'ageing' IS DISTINCT FROM s.configured -> 'ageing'
            THEN (p_configured ->> 'ageing')::double precision * interval '1 second' ELSE s.ageing END,
        configured = p_configured, updated_at = clock_timestamp();
    PERFORM pg_notify(current_schema() || '_ready', '');
END $$;
