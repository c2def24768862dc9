-- The guard of writers that know only SQL. It fires only for those who touched neither token, so our own
-- functions never wake it. It gives their transitions a fresh token, which outdates any worker of ours that
-- still runs the task; it refuses ("UPDATE 0") to end a task that is not theirs to end, and to take a task away
-- from a worker of ours whose lease is alive. Who takes a lost task back leaves a cancelled one with an open operation
-- at the provider to the next worker, as recover_tokens does. (SECURITY DEFINER: such a writer needs rights on tasks alone.)
CREATE OR REPLACE FUNCTION tasks_guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    n timestamptz := clock_timestamp();
    waits boolean;  -- for a worker that cancels its operation
BEGIN
    IF (NEW.status IN ('completed', 'failed') AND OLD.status <> 'running')
       OR (NEW.status <> 'running' AND OLD.status = 'running' AND OLD.worker_id IS NOT NULL AND OLD.locked_until > n) THEN
        RETURN NULL;
    END IF;
    IF NEW.status = OLD.status THEN
        RETURN NEW;
    END IF;
    NEW.claim_token := nextval('claim_token_seq');
    waits := OLD.status = 'running' AND OLD.cancel_requested_at IS NOT NULL AND coalesce(OLD.start_before > n, false)
             AND (NEW.status = 'pending' OR (NEW.status = 'failed' AND coalesce(NEW.error = 'worker timeout', false)));
    waits := CASE WHEN waits THEN is_followed(OLD.task_id, n) ELSE false END;
    IF OLD.status = 'running' THEN
        IF waits THEN
            NEW.status := 'pending';
            NEW.error := OLD.error;
            NEW.attempts := greatest(0, OLD.attempts - 1);
        ELSIF OLD.cancel_requested_at IS NOT NULL THEN  -- its caller was told that it ends so
            NEW.status := 'failed';
            NEW.result := NULL;
            NEW.error := 'cancelled';
        END IF;
        IF NEW.status <> 'completed' THEN
            INSERT INTO task_attempts AS a
                (task_id, token, attempt, worker_id, started_at, finished_at, outcome, error, error_code)
            VALUES (OLD.task_id, OLD.claim_token, OLD.attempts, OLD.worker_id, OLD.started_at, n,
                    CASE WHEN OLD.cancel_requested_at IS NOT NULL AND NOT waits THEN 'cancelled'
                         WHEN NEW.status = 'pending' OR NEW.error = 'worker timeout' THEN 'lost' ELSE 'failed' END,
                    CASE WHEN NEW.status = 'pending' THEN 'worker timeout' ELSE NEW.error END,
                    CASE WHEN NEW.status = 'pending' OR NEW.error = 'worker timeout' THEN 'worker_timeout' END)
            ON CONFLICT (task_id, token) DO UPDATE
            SET finished_at = excluded.finished_at, outcome = excluded.outcome, error = excluded.error,
                error_code = excluded.error_code;
        END IF;
    END IF;
    CASE NEW.status
    WHEN 'running' THEN
        NEW.worker_id := NULL;
        NEW.started_at := n;
        NEW.run_at := NULL;
        IF OLD.status <> 'pending' THEN
            NEW.cancel_requested_at := NULL;
        END IF;
        IF NEW.cancel_requested_at IS NULL THEN
            NEW.start_before := NULL;
        END IF;
    WHEN 'pending' THEN
        NEW.worker_id := NULL;
        NEW.run_at := coalesce(nullif(NEW.run_at, OLD.run_at), n);
        NEW.finished_at := NULL;
        NEW.expires_at := NULL;
        IF waits THEN
            NEW.locked_until := NULL;
            NEW.start_before := OLD.start_before;
            NEW.cancel_requested_at := OLD.cancel_requested_at;
            PERFORM pass_on_cancel(ARRAY[NEW.task_id]);
        ELSE
            IF OLD.cancel_requested_at IS NOT NULL THEN
                NEW.start_before := nullif(NEW.start_before, OLD.start_before);
                PERFORM forget_cancel(NEW.task_id);
            END IF;
            NEW.cancel_requested_at := NULL;
        END IF;
        IF num_nulls(NEW.task_type, NEW.request) = 0 THEN
            NEW.flow := flow_id(NEW.task_type, NEW.priority, NEW.tenant, NEW.upstream, NEW.model);
            PERFORM announce_ready(ARRAY[ROW (NEW.flow, NEW.task_type, NEW.priority, NEW.tenant, NEW.upstream, NEW.model, NULL)::flows]);
        END IF;
    ELSE
        NEW.finished_at := n;
        NEW.locked_until := NULL;
        NEW.expires_at := coalesce(NEW.expires_at, n + (SELECT s.result_ttl FROM settings s));
        -- what an earlier attempt left behind is not this one's error
        NEW.error := CASE WHEN NEW.status = 'failed' OR NEW.error IS DISTINCT FROM OLD.error THEN NEW.error END;
        NEW.error_code := CASE WHEN NEW.error IN ('cancelled', 'worker timeout') THEN replace(NEW.error, ' ', '_')
                               WHEN NEW.error_code IS DISTINCT FROM OLD.error_code THEN NEW.error_code END;
        NEW.error_info := CASE WHEN NEW.error_info IS DISTINCT FROM OLD.error_info THEN NEW.error_info END;
        PERFORM announce_done(ARRAY[NEW.task_id]);
    END CASE;
    IF OLD.status = 'running' THEN
        PERFORM announce_room();
    END IF;
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

-- "Run it now" is a time that has come, not none: by its run_at claim knows what was started before, and may have been paid for.
CREATE OR REPLACE FUNCTION tasks_run_now() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.run_at := clock_timestamp();
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER tasks_run_now BEFORE UPDATE OF run_at ON tasks FOR EACH ROW
    WHEN (NEW.run_at IS NULL AND OLD.run_at IS NOT NULL AND NEW.status = 'pending' AND OLD.status = 'pending')
    EXECUTE FUNCTION tasks_run_now();
