-- Reading and writing the claim ledger; the caller holds the claim lock.
CREATE OR REPLACE FUNCTION last_ledger() RETURNS claim_ledger
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE l claim_ledger;
BEGIN
    SELECT * INTO l FROM claim_ledger ORDER BY id DESC LIMIT 1;
    IF NOT FOUND THEN
        l := ROW(0, 0, '{}', '{}', '{}', '{}', '-infinity', interval '0')::claim_ledger;
    END IF;
    RETURN l;
END $$;

-- p_live: every token that may be running from here on (one too many costs a look-up, one too few the limit).
CREATE OR REPLACE FUNCTION write_ledger(p_ledger claim_ledger, p_live bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE written bigint;
BEGIN
    INSERT INTO claim_ledger (max_token, live, lanes, marks, due_marks, swept_at, sweep_cost)
    VALUES (greatest(p_ledger.max_token, (SELECT max(k) FROM unnest(p_live) k)), coalesce(p_live, '{}'),
            p_ledger.lanes, p_ledger.marks, p_ledger.due_marks, p_ledger.swept_at, p_ledger.sweep_cost)
    RETURNING id INTO written;
    IF written % 1000 = 0 THEN
        DELETE FROM claim_ledger WHERE id BETWEEN written - 3000 AND written - 1000;
    END IF;
END $$;

-- Moves the mark of a lane up: of arrivals (p_seq) or of tasks that fell due (p_due). A mark never goes down here.
CREATE OR REPLACE FUNCTION raise_mark(p_ledger claim_ledger, p_lane text, p_seq bigint, p_due timestamptz)
RETURNS claim_ledger
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
DECLARE place integer := array_position(p_ledger.lanes, p_lane);
BEGIN
    IF place IS NULL THEN
        p_ledger.lanes := p_ledger.lanes || p_lane;
        p_ledger.marks := p_ledger.marks || coalesce(p_seq, -9223372036854775808);
        p_ledger.due_marks := p_ledger.due_marks || coalesce(p_due, '-infinity');
    ELSE
        p_ledger.marks[place] := greatest(p_ledger.marks[place], p_seq);
        p_ledger.due_marks[place] := greatest(p_ledger.due_marks[place], p_due);
    END IF;
    RETURN p_ledger;
END $$;
