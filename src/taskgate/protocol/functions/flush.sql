-- Returns when all that this session has committed before is on disk (and replicated, where commits wait for that):
-- its own commit is, and it comes later in the log. Alone in its transaction, or among what is answered after its commit.
-- Only then may the answer of claim(…, p_flush => false) be used. It is the message that makes the commit wait: one that
-- has an id and wrote nothing does not. Nothing is written when all of the log is on disk, as after a claim in vain.
CREATE OR REPLACE FUNCTION flush() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn() OR current_setting('synchronous_standby_names') <> '' THEN
        PERFORM pg_logical_emit_message(true, 'taskgate', '');
    END IF;
END $$;
