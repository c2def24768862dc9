-- Rows of writers that know only SQL get their flow here; our own functions bring it along.
CREATE OR REPLACE FUNCTION tasks_flow() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    told text := coalesce(current_setting('taskgate.told', true), '');
    mark text;
BEGIN
    IF TG_OP = 'INSERT' AND NEW.model = '' THEN
        NEW.model := request_model(NEW.request);
    END IF;
    IF TG_OP = 'INSERT' AND NEW.upstream = '' AND NEW.task_type IS NOT NULL THEN
        NEW.upstream := pick_upstream(NEW.task_type, NEW.model);
    END IF;
    NEW.flow := flow_id(NEW.task_type, NEW.priority, NEW.tenant, NEW.upstream, NEW.model);
    mark := format('<%s %s>', current_schema(), NEW.flow);
    -- once a transaction and flow: announcing takes a lock until its end
    IF NEW.status = 'pending' AND NEW.flow IS NOT NULL AND position(mark IN told) = 0 THEN
        PERFORM announce_ready(ARRAY[ROW (NEW.flow, NEW.task_type, NEW.priority, NEW.tenant, NEW.upstream, NEW.model, NULL)::flows]);
        PERFORM set_config('taskgate.told', right(told || mark, 2000), true);
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER tasks_flow_new BEFORE INSERT ON tasks FOR EACH ROW
    WHEN (NEW.flow IS NULL) EXECUTE FUNCTION tasks_flow();
CREATE OR REPLACE TRIGGER tasks_flow_changed BEFORE UPDATE OF task_type, priority, tenant, upstream, model ON tasks FOR EACH ROW
    WHEN ((NEW.task_type, NEW.priority, NEW.tenant, NEW.upstream, NEW.model)
          IS DISTINCT FROM (OLD.task_type, OLD.priority, OLD.tenant, OLD.upstream, OLD.model)) EXECUTE FUNCTION tasks_flow();
