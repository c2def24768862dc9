-- A time that every driver can decode: the years 1 to 9999. SQL can write others ('infinity', 4000 BC).
CREATE OR REPLACE FUNCTION readable(p_time timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN p_time IS NOT NULL  -- least and greatest would skip a NULL
                THEN least(greatest(p_time, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') END
$$;
