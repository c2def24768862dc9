-- A time as milliseconds since 1970, the unit of the waiting flags. (STABLE, as extract is: else it would not be inlined.)
CREATE OR REPLACE FUNCTION epoch_ms(p_time timestamptz) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT (extract(epoch FROM p_time) * 1000)::bigint
$$;
