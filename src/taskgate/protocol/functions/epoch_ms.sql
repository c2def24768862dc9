-- A time as milliseconds since 1970, the unit of the waiting flags.
CREATE OR REPLACE FUNCTION epoch_ms(p_time timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (extract(epoch FROM p_time) * 1000)::bigint
$$;
