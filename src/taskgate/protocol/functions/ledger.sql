-- Reading and writing the claim ledger; the caller holds the claim lock.
CREATE OR REPLACE FUNCTION last_ledger() RETURNS claim_ledger
LANGUAGE plpgsql STABLE AS $$
DECLARE l claim_ledger;
BEGIN
    SELECT * INTO l FROM claim_ledger ORDER BY id DESC LIMIT 1;
    IF NOT FOUND THEN
        l := ROW(0, 0, '{}', 0, '{}', '{}', '{}', '{}', '{}', '{}', '-infinity', interval '0')::claim_ledger;
    END IF;
    RETURN l;
END $$;

-- p_live: every token that may be running (one too many costs a look-up, one too few the limit), except those that are
-- given out from here on, which are above max_token. p_ran: how many run when the caller is done.
CREATE OR REPLACE FUNCTION write_ledger(p_ledger claim_ledger, p_live bigint[], p_ran integer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    given bigint := pg_sequence_last_value('claim_token_seq');
    written bigint;
BEGIN
    IF given IS NULL THEN  -- none since it was set
        SELECT CASE WHEN q.is_called THEN q.last_value ELSE q.last_value - 1 END INTO given FROM claim_token_seq q;
    END IF;
    INSERT INTO claim_ledger (max_token, live, ran, flows, marks, due_marks, aged, ages, buckets, swept_at, sweep_cost)
    VALUES (greatest(p_ledger.max_token, given), coalesce(p_live, '{}'), p_ran, p_ledger.flows, p_ledger.marks, p_ledger.due_marks, p_ledger.aged, p_ledger.ages,
            p_ledger.buckets, p_ledger.swept_at, p_ledger.sweep_cost)
    RETURNING id INTO written;
    IF written % 1000 = 0 THEN
        DELETE FROM claim_ledger WHERE id BETWEEN written - 3000 AND written - 1000;
    END IF;
END $$;

-- Puts flows that were served just now, the last one first, at the head of those that the ledger remembers (64 at
-- most), each with its marks; a mark of a flow that was there goes up, never down.
CREATE OR REPLACE FUNCTION touch_flows(p_ledger claim_ledger, p_flows bigint[], p_seqs bigint[], p_dues timestamptz[])
RETURNS claim_ledger
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    SELECT array_agg(k.flow ORDER BY k.ord), array_agg(k.mark ORDER BY k.ord), array_agg(k.due_mark ORDER BY k.ord)
    INTO p_ledger.flows, p_ledger.marks, p_ledger.due_marks
    FROM (
        SELECT u.flow, min(u.ord) AS ord, coalesce(max(u.mark), -9223372036854775808) AS mark, coalesce(max(u.due_mark), '-infinity') AS due_mark
        FROM (
            SELECT n.flow, n.mark, n.due_mark, n.ord FROM unnest(p_flows, p_seqs, p_dues) WITH ORDINALITY AS n (flow, mark, due_mark, ord)
            UNION ALL
            SELECT o.flow, o.mark, o.due_mark, 1000000 + o.ord
            FROM unnest(p_ledger.flows, p_ledger.marks, p_ledger.due_marks) WITH ORDINALITY AS o (flow, mark, due_mark, ord)
        ) AS u
        GROUP BY u.flow ORDER BY min(u.ord) LIMIT 64
    ) AS k;
    RETURN p_ledger;
END $$;
