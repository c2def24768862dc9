-- The flow of a task: 64 bits of a digest, so that nobody can choose names that stand in somebody else's line.
-- (Written with immutable parts alone, for then it is inlined where it is called: a sixth of the time.)
CREATE OR REPLACE FUNCTION flow_id(p_type text, p_priority integer, p_tenant text, p_upstream text, p_model text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ('x' || left(encode(sha256(replace(
        p_priority::text || '/' || length(p_type)::text || '/' || length(p_tenant)::text || '/' || length(p_upstream)::text || '/'
            || p_type || p_tenant || p_upstream || p_model, '\', '\\')::bytea), 'hex'), 16))::bit(64)::bigint
$$;

-- The model that a request names, '' if it names none.
CREATE OR REPLACE FUNCTION request_model(p_request jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(p_request -> 'model') = 'string' AND length(p_request ->> 'model') <= 200
           THEN p_request ->> 'model' ELSE '' END
$$;
