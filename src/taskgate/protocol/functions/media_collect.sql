-- Collects content of one store that no task refers to since p_grace, and uploads that stopped so long ago. What is
-- in the database is deleted; else nobody can share it from now on, and the caller deletes each object, then calls
-- media_discard. Who stops in between gets the same rows again. Call again while it answers p_limit rows.
CREATE OR REPLACE FUNCTION media_collect(
    p_store text DEFAULT 'postgres', p_grace interval DEFAULT interval '1 hour', p_limit integer DEFAULT 20
) RETURNS TABLE (blob bigint, object text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    until timestamptz := clock_timestamp() - p_grace;
    idle bigint[];
BEGIN
    SELECT array_agg(l.id) INTO idle
    FROM (SELECT b.id FROM media_blobs b WHERE b.store = p_store AND b.idle_since IS NOT NULL AND b.idle_since <= until
          ORDER BY b.idle_since LIMIT p_limit FOR UPDATE SKIP LOCKED) AS l;
    IF idle IS NULL THEN
        RETURN;
    END IF;
    -- In a statement of its own: what was attached before the rows were locked is seen now.
    UPDATE media_blobs b SET idle_since = NULL
    WHERE b.id = ANY (idle) AND EXISTS (SELECT FROM task_media m WHERE m.blob = b.id);
    IF p_store = 'postgres' THEN
        RETURN QUERY DELETE FROM media_blobs b WHERE b.id = ANY (idle) AND b.idle_since IS NOT NULL RETURNING b.id, b.object;
    ELSE
        RETURN QUERY UPDATE media_blobs b SET sha256 = NULL, idle_since = '-infinity'  -- given up: see append, attach
        WHERE b.id = ANY (idle) AND b.idle_since IS NOT NULL
        RETURNING b.id, b.object;
    END IF;
END $$;

-- Whether some of these stores has what media_collect would collect.
CREATE OR REPLACE FUNCTION media_idle(p_stores text[], p_grace interval DEFAULT interval '1 hour') RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    until timestamptz := clock_timestamp() - p_grace;
    store_ text;
BEGIN
    FOREACH store_ IN ARRAY p_stores LOOP
        IF EXISTS (SELECT FROM media_blobs b WHERE b.store = store_ AND b.idle_since IS NOT NULL AND b.idle_since <= until) THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;

-- Whatever takes a reference away (a purge, any other DELETE, another content under the same name) leaves a mark.
CREATE OR REPLACE FUNCTION media_unreferenced() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        UPDATE media_blobs SET idle_since = clock_timestamp() WHERE idle_since IS NULL;
    ELSE
        UPDATE media_blobs SET idle_since = clock_timestamp() WHERE id = OLD.blob;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER media_unreferenced AFTER DELETE ON task_media FOR EACH ROW
    EXECUTE FUNCTION media_unreferenced();
CREATE OR REPLACE TRIGGER media_replaced AFTER UPDATE OF blob ON task_media FOR EACH ROW
    WHEN (NEW.blob <> OLD.blob) EXECUTE FUNCTION media_unreferenced();
CREATE OR REPLACE TRIGGER media_truncated AFTER TRUNCATE ON task_media FOR EACH STATEMENT
    EXECUTE FUNCTION media_unreferenced();
