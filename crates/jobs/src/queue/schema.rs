//! The tables of this crate, as migrations that run once each.

/// Migrations of a state database to this crate's current tables; `store::state` runs each once.
pub const JOB_MIGRATIONS: &[&str] = &[
    "CREATE TABLE job (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        queue TEXT NOT NULL,
        topic TEXT NOT NULL,
        payload TEXT NOT NULL,
        job_key TEXT,
        state TEXT NOT NULL,
        attempt BIGINT NOT NULL,
        run_at BIGINT NOT NULL,
        lease_until BIGINT,
        worker TEXT,
        created BIGINT NOT NULL,
        created_by TEXT NOT NULL,
        last_error TEXT
    )",
    "CREATE INDEX job_by_queue ON job (queue, id)",
    "CREATE UNIQUE INDEX job_by_key ON job (queue, job_key)",
    "CREATE TABLE follower (name TEXT PRIMARY KEY, root TEXT NOT NULL)",
    // From this migration on, a queue is found by the topic alone, so a change of its configuration moves no rows.
    "ALTER TABLE job ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
     ALTER TABLE job ADD COLUMN lane TEXT NOT NULL DEFAULT '';
     ALTER TABLE job ADD COLUMN priority BIGINT NOT NULL DEFAULT 0;
     ALTER TABLE job ADD COLUMN started BIGINT;
     ALTER TABLE job ADD COLUMN ended BIGINT;
     ALTER TABLE job ADD COLUMN progress TEXT;
     ALTER TABLE job ADD COLUMN cancel BIGINT NOT NULL DEFAULT 0;
     UPDATE job SET topic = 'com/day/cq/replication/job/' || substr(queue, 13) WHERE queue LIKE 'replication/%';
     UPDATE job SET lane = topic || '
';
     DROP INDEX job_by_queue;
     DROP INDEX job_by_key;
     ALTER TABLE job DROP COLUMN queue",
    // A lane is the waiting jobs of one topic and one tenant; the index has them in the order in which they are
    // claimed.
    "CREATE INDEX job_waiting ON job (lane, priority DESC, id) WHERE state = 'QUEUED';
     CREATE INDEX job_delayed ON job (run_at) WHERE state = 'DELAYED';
     CREATE INDEX job_leased ON job (lease_until) WHERE state IN ('ACTIVE', 'HELD');
     CREATE INDEX job_by_topic ON job (topic, id);
     CREATE UNIQUE INDEX job_by_key ON job (topic, job_key) WHERE job_key IS NOT NULL",
    "CREATE TABLE job_topic (
        topic TEXT PRIMARY KEY,
        first_seen BIGINT NOT NULL,
        finished BIGINT NOT NULL DEFAULT 0,
        failed BIGINT NOT NULL DEFAULT 0,
        cancelled BIGINT NOT NULL DEFAULT 0,
        wait_ms BIGINT NOT NULL DEFAULT 0,
        run_ms BIGINT NOT NULL DEFAULT 0,
        last_ended BIGINT
    );
    CREATE TABLE job_queue (name TEXT PRIMARY KEY, state TEXT NOT NULL, changed BIGINT NOT NULL, by_user TEXT NOT NULL);
    CREATE TABLE job_worker (
        name TEXT PRIMARY KEY, role TEXT NOT NULL, reserves TEXT NOT NULL, until BIGINT NOT NULL
    );
    CREATE TABLE job_schedule (
        name TEXT PRIMARY KEY,
        topic TEXT NOT NULL,
        payload TEXT NOT NULL,
        rule TEXT NOT NULL,
        next_run BIGINT,
        tenant TEXT NOT NULL,
        created_by TEXT NOT NULL,
        is_paused BIGINT NOT NULL DEFAULT 0
    )",
    "CREATE TABLE workflow (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        model TEXT NOT NULL,
        title TEXT NOT NULL,
        definition TEXT NOT NULL,
        payload TEXT NOT NULL,
        state TEXT NOT NULL,
        data TEXT NOT NULL,
        flow TEXT NOT NULL,
        initiator TEXT NOT NULL,
        started BIGINT NOT NULL,
        ended BIGINT,
        is_transient BIGINT NOT NULL
    )",
    "CREATE TABLE work_item (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        workflow BIGINT NOT NULL,
        node TEXT NOT NULL,
        kind TEXT NOT NULL,
        title TEXT NOT NULL,
        assignee TEXT,
        started BIGINT NOT NULL,
        data TEXT NOT NULL
    )",
    "CREATE TABLE workflow_history (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        workflow BIGINT NOT NULL,
        node TEXT NOT NULL,
        title TEXT NOT NULL,
        action TEXT NOT NULL,
        user_name TEXT NOT NULL,
        at BIGINT NOT NULL,
        comment TEXT
    )",
    "CREATE INDEX work_item_of ON work_item (workflow);
     CREATE INDEX work_item_for ON work_item (assignee) WHERE kind = 'PARTICIPANT';
     CREATE INDEX workflow_history_of ON workflow_history (workflow);
     CREATE INDEX workflow_about ON workflow (payload);
     CREATE INDEX workflow_ended ON workflow (ended) WHERE ended IS NOT NULL",
    "CREATE INDEX job_ended ON job (ended) WHERE ended IS NOT NULL",
    // A step references the job that executes it; a nested instance references the step of its parent instance.
    "ALTER TABLE work_item ADD COLUMN job BIGINT;
     ALTER TABLE workflow ADD COLUMN parent_item BIGINT;
     CREATE INDEX workflow_part_of ON workflow (parent_item) WHERE parent_item IS NOT NULL",
    // Each process's facts, which must be equal in all processes on a database.
    "ALTER TABLE job_worker ADD COLUMN facts TEXT NOT NULL DEFAULT ''",
    // Very many jobs may have been given up, and unrelated work must not grow with them, so ended and open jobs have
    // separate indexes. Ended jobs are listed by state, of all topics or one, and found by their subject, which is
    // compared by its bytes.
    "UPDATE job SET ended = run_at WHERE ended IS NULL AND state IN ('GIVEN_UP', 'ERROR', 'SUCCEEDED', 'STOPPED');
     CREATE INDEX job_open ON job (topic, id) WHERE ended IS NULL;
     CREATE INDEX job_ended_by_state ON job (state, id) WHERE ended IS NOT NULL;
     CREATE INDEX job_ended_of_topic ON job (topic, state, id, ended) WHERE ended IS NOT NULL;
     ALTER TABLE job ADD COLUMN about TEXT COLLATE BINARY;
     CREATE INDEX job_ended_about ON job (topic, about) WHERE ended IS NOT NULL",
];
