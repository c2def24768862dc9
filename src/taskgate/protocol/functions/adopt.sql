-- Gives rows of an adopted origin table what they lack: running ones a token of their own, all an order of arrival
-- (by created_at, below every new one). The batches skip rows that others hold: call them until nothing is left.

-- Answers how many running rows got a token. Under the claim lock, as every token of a running row is given.
CREATE OR REPLACE FUNCTION adopt_running() RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE adopted integer;
BEGIN
    PERFORM pg_advisory_xact_lock(lock_key());
    WITH untold AS (
        SELECT t.task_id FROM tasks t WHERE t.status = 'running' AND num_nulls(t.request) = 0 AND t.claim_token = 0
        FOR UPDATE SKIP LOCKED
    )
    UPDATE tasks t SET claim_token = nextval('claim_token_seq'), started_at = coalesce(t.started_at, t.updated_at)
    FROM untold WHERE t.task_id = untold.task_id;
    GET DIAGNOSTICS adopted = ROW_COUNT;
    RETURN adopted;
END $$;

-- Answers how many rows lack an order of arrival, and ranks them for this session.
CREATE OR REPLACE FUNCTION adopt_rank() RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    below bigint;
    missing bigint;
BEGIN
    DROP TABLE IF EXISTS pg_temp.adopting;
    CREATE TEMP TABLE adopting AS
        SELECT t.task_id, row_number() OVER (ORDER BY t.created_at, t.task_id) AS rank FROM tasks t WHERE t.tenant = '' AND t.seq IS NULL;
    GET DIAGNOSTICS missing = ROW_COUNT;
    IF missing > 0 THEN
        -- unique, since `seq` is the cursor of lists; an adoption that was cut short goes on below what it had done
        SELECT least(0, min(t.seq)) INTO below FROM tasks t WHERE t.tenant = '' AND t.seq < 0;
        UPDATE adopting SET rank = rank - missing - 1 + coalesce(below, 0);
        CREATE INDEX ON adopting (rank);
        ANALYZE adopting;
    END IF;
    RETURN missing;
END $$;

-- Takes the next p_batch ranked rows after p_after; answers the last rank of them, NULL at the end. Rows that
-- others hold keep their rank for the next pass.
CREATE OR REPLACE FUNCTION adopt_order(p_after bigint, p_batch integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    ids text[];
    last_rank bigint;
BEGIN
    SELECT array_agg(a.task_id), max(a.rank) INTO ids, last_rank
    FROM (SELECT * FROM adopting WHERE rank > p_after ORDER BY rank LIMIT p_batch) AS a;
    WITH free AS (
        SELECT t.task_id FROM tasks t WHERE t.task_id = ANY (ids) AND t.seq IS NULL FOR UPDATE SKIP LOCKED
    )
    UPDATE tasks t SET seq = a.rank FROM free JOIN adopting a USING (task_id) WHERE t.task_id = free.task_id;
    PERFORM adopt_flows(ids);
    DELETE FROM adopting a WHERE a.task_id = ANY (ids)
        AND NOT EXISTS (SELECT FROM tasks t WHERE t.task_id = a.task_id AND t.seq IS NULL);
    RETURN last_rank;
END $$;

-- Gives these rows (NULL: all) their flow, if they are to run or run, and enters it in the directory. Rows that others
-- hold are skipped; answers how many are left without.
CREATE OR REPLACE FUNCTION adopt_flows(p_ids text[] DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    ids text[];
BEGIN
    SELECT array_agg(f.task_id) INTO ids
    FROM (SELECT t.task_id FROM tasks t
          WHERE t.status IN ('pending', 'running') AND t.flow IS NULL AND t.task_type IS NOT NULL AND (p_ids IS NULL OR t.task_id = ANY (p_ids))
          LIMIT 10000 FOR UPDATE SKIP LOCKED) AS f;
    UPDATE tasks t SET model = m.model, upstream = m.upstream, flow = flow_id(t.task_type, t.priority, t.tenant, m.upstream, m.model)
    FROM tasks o
    CROSS JOIN LATERAL (SELECT r.model, pick_upstream(o.task_type, r.model) FROM (SELECT request_model(o.request)) AS r (model)) AS m (model, upstream)
    WHERE t.task_id = ANY (ids) AND o.task_id = t.task_id;
    PERFORM announce_tasks(ids);
    RETURN (SELECT count(*) FROM tasks t WHERE p_ids IS NULL AND t.status IN ('pending', 'running') AND t.flow IS NULL AND t.task_type IS NOT NULL);
END $$;
