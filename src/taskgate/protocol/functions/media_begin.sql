-- Begins an upload; answers its blob. `p_store` is `postgres`, or where the bytes go under the key `p_object`.
CREATE OR REPLACE FUNCTION media_begin(p_store text DEFAULT 'postgres', p_object text DEFAULT NULL) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    INSERT INTO media_blobs (store, object) VALUES (p_store, p_object) RETURNING id
$$;
