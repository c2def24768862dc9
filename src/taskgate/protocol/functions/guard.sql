-- The guard of writers that know only SQL. It fires only for those who touched neither token, so our own
-- functions never wake it. (SECURITY DEFINER: such a writer needs rights on tasks alone.) It gives their transitions a fresh token, which outdates any worker of ours that
-- still runs the task, and refuses ("UPDATE 0") a final status for a task that is not theirs to finish.
CREATE OR REPLACE FUNCTION tasks_guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF NEW.status IN ('completed', 'failed') AND (
        OLD.status <> 'running' OR (OLD.worker_id IS NOT NULL AND OLD.locked_until > clock_timestamp())
    ) THEN
        RETURN NULL;
    END IF;
    IF NEW.status = OLD.status THEN
        RETURN NEW;
    END IF;
    NEW.claim_token := nextval('claim_token_seq');
    CASE NEW.status
    WHEN 'running' THEN
        NEW.worker_id := NULL;
        NEW.started_at := clock_timestamp();
        NEW.run_at := NULL;
    WHEN 'pending' THEN
        NEW.worker_id := NULL;
        NEW.run_at := coalesce(nullif(NEW.run_at, OLD.run_at), clock_timestamp());
        NEW.finished_at := NULL;
        NEW.expires_at := NULL;
        NEW.cancel_requested_at := NULL;
    ELSE
        NEW.finished_at := clock_timestamp();
        NEW.locked_until := NULL;
        NEW.expires_at := coalesce(NEW.expires_at, clock_timestamp() + (SELECT s.result_ttl FROM settings s));
        PERFORM announce_done(ARRAY[NEW.task_id]);
    END CASE;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER tasks_guard BEFORE UPDATE OF status ON tasks FOR EACH ROW
    WHEN (NEW.claim_token = OLD.claim_token AND NEW.settled_token IS NOT DISTINCT FROM OLD.settled_token)
    EXECUTE FUNCTION tasks_guard();

-- The order-preserving copy of a request must not outlive a change of the request itself.
CREATE OR REPLACE FUNCTION tasks_request_changed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.request_raw := NULL;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER tasks_request_changed BEFORE UPDATE OF request ON tasks FOR EACH ROW
    WHEN (NEW.request IS DISTINCT FROM OLD.request AND NEW.request_raw::text IS NOT DISTINCT FROM OLD.request_raw::text)
    EXECUTE FUNCTION tasks_request_changed();
