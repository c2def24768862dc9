-- Takes idempotency keys for tasks that the caller is about to enqueue in this transaction. One element a task in
-- each array; tasks of one key stand together or apart, their order counts. Waits for a transaction that has just
-- taken one of the keys and is not over.
-- Answers one row a key: `fresh`, it is yours now, write its tasks; `replayed`, it was used for the same
-- submission: task_ids are those of then, with what they are now (`not_found`: purged); `mismatch`, it was used for another one: write nothing.
CREATE OR REPLACE FUNCTION remember(p_tenant text, p_keys text[], p_fingerprints text[], p_ids text[])
RETURNS TABLE (key text, outcome text, task_ids text[], statuses text[])
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    fresh text[];
BEGIN
    LOOP
        WITH given AS (
            SELECT u.key, min(u.fingerprint) AS fingerprint, array_agg(u.id ORDER BY u.ord) AS ids
            FROM unnest(p_keys, p_fingerprints, p_ids) WITH ORDINALITY AS u (key, fingerprint, id, ord)
            GROUP BY u.key
        ), put AS (
            INSERT INTO idempotency_keys (tenant, key, fingerprint, task_id, task_ids)
            SELECT p_tenant, g.key, g.fingerprint, g.ids[1], g.ids FROM given g
            WHERE NOT g.key = ANY (coalesce(fresh, '{}'))
            ORDER BY g.key  -- two submissions that share keys must not wait for each other in a circle
            ON CONFLICT (tenant, key) DO NOTHING
            RETURNING idempotency_keys.key
        )
        SELECT fresh || array_agg(put.key) INTO fresh FROM put;
        -- in a statement of its own: it sees what the insert had to wait for
        RETURN QUERY
        SELECT k.key,
               CASE WHEN k.key = ANY (coalesce(fresh, '{}')) THEN 'fresh'
                    WHEN k.fingerprint = g.fingerprint THEN 'replayed' ELSE 'mismatch' END,
               k.task_ids,
               CASE WHEN NOT k.key = ANY (coalesce(fresh, '{}')) THEN (
                   SELECT array_agg(coalesce(t.status, 'not_found') ORDER BY i.ord)
                   FROM unnest(k.task_ids) WITH ORDINALITY AS i (id, ord) LEFT JOIN tasks t ON t.task_id = i.id
               ) END
        FROM (SELECT u.key, min(u.fingerprint) AS fingerprint FROM unnest(p_keys, p_fingerprints) AS u (key, fingerprint)
              GROUP BY u.key) AS g
        JOIN idempotency_keys k ON k.tenant = p_tenant AND k.key = g.key
        WHERE (SELECT count(*) FROM idempotency_keys i WHERE i.tenant = p_tenant AND i.key = ANY (p_keys))
              = (SELECT count(DISTINCT d.key) FROM unnest(p_keys) AS d (key));
        EXIT WHEN FOUND OR cardinality(p_keys) = 0;
        -- one was purged with its task between the two statements: it is free now
    END LOOP;
    IF cardinality(p_keys) > coalesce(cardinality(fresh), 0) THEN
        PERFORM flush();  -- the commit answers for what others wrote: see enqueue
    END IF;
END $$;
