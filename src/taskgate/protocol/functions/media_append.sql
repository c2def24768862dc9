-- Writes chunks p_n, p_n + 1, … of an upload; the same ones again change nothing. No chunks: only says that it goes on.
-- Answers `done`, or `gone` for an upload that nobody heard of for so long that it was collected.
CREATE OR REPLACE FUNCTION media_append(p_blob bigint, p_n integer, p_chunks bytea[]) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE idle timestamptz;
BEGIN
    SELECT idle_since INTO idle FROM media_blobs WHERE id = p_blob FOR KEY SHARE;
    IF NOT FOUND OR idle = '-infinity' THEN
        RETURN 'gone';
    END IF;
    IF idle < clock_timestamp() - interval '10 seconds' THEN  -- not at each call: that would leave a dead row each
        UPDATE media_blobs SET idle_since = clock_timestamp() WHERE id = p_blob AND idle_since IS NOT NULL;
    END IF;
    INSERT INTO media_chunks (blob, n, data)
    SELECT p_blob, p_n + c.o::integer - 1, c.data FROM unnest(p_chunks) WITH ORDINALITY AS c (data, o)
    ON CONFLICT DO NOTHING;
    RETURN 'done';
END $$;
