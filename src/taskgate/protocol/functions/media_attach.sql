-- Ends an upload and gives it to a running task under a name, in place of what was there. Needs the live token.
-- `done`; `shared`: the same content was there already and is used, so discard yours; `stale`: not your task any more,
-- nothing was attached; `incomplete`: the chunks are not those bytes; `gone`: the upload was collected.
CREATE OR REPLACE FUNCTION media_attach(
    p_id text, p_token bigint, p_name text, p_blob bigint, p_sha256 text, p_bytes bigint, p_mime text
) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    hash bytea := decode(p_sha256, 'hex');
    mine record;
    kept bigint;
    chunks record;
BEGIN
    PERFORM FROM begun(p_id, p_token);
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    SELECT store, sha256 INTO mine FROM media_blobs WHERE id = p_blob FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'gone';
    END IF;
    IF mine.store = 'postgres' AND mine.sha256 IS NULL THEN
        -- the stored size of an uncompressed value is known without reading it
        SELECT count(*) AS n, coalesce(sum(octet_length(data)), 0) AS bytes,
               count(*) FILTER (WHERE octet_length(data) < 262144) AS short, coalesce(max(n), -1) AS last,
               min(n) FILTER (WHERE octet_length(data) < 262144) AS shortest
        INTO chunks FROM media_chunks WHERE blob = p_blob;
        IF chunks.bytes <> p_bytes OR chunks.last <> chunks.n - 1 OR chunks.n <> (p_bytes + 262143) / 262144
           OR chunks.short <> (p_bytes % 262144 > 0)::integer OR chunks.shortest <> chunks.last THEN
            RETURN 'incomplete';
        END IF;
    END IF;
    LOOP
        -- The change of idle_since, under this row's lock, is what a collector that chose it before looks at again.
        UPDATE media_blobs SET idle_since = NULL WHERE store = mine.store AND sha256 = hash RETURNING id INTO kept;
        EXIT WHEN kept IS NOT NULL;
        BEGIN
            UPDATE media_blobs SET sha256 = hash, bytes = p_bytes, idle_since = NULL
            WHERE id = p_blob AND sha256 IS NULL AND idle_since > '-infinity' RETURNING id INTO kept;
            IF kept IS NULL THEN
                RETURN 'gone';
            END IF;
            EXIT;
        EXCEPTION WHEN unique_violation THEN
            NULL;  -- the same content was ended at the same moment: share that one
        END;
    END LOOP;
    INSERT INTO task_media AS m (task_id, name, blob, mime) VALUES (p_id, p_name, kept, p_mime)
    ON CONFLICT (task_id, name) DO UPDATE SET blob = excluded.blob, mime = excluded.mime, created_at = excluded.created_at;
    RETURN CASE kept WHEN p_blob THEN 'done' ELSE 'shared' END;
END $$;
