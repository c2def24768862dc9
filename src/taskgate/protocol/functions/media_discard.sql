-- Deletes an upload that was given up, or is not needed. What a task refers to stays. Of a file or object the bytes
-- are deleted first, then this is called: the row is what finds them again.
CREATE OR REPLACE FUNCTION media_discard(p_blob bigint) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    DELETE FROM media_blobs WHERE id = p_blob AND sha256 IS NULL
$$;
