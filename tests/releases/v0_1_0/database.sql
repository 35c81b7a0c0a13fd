BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('r0001');
CREATE TABLE artifacts (
	job VARCHAR(200) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	attempt INTEGER NOT NULL, 
	blob TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_artifacts PRIMARY KEY (job, name), 
	CONSTRAINT fk_artifacts_job FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE attempts (
	job VARCHAR(200) NOT NULL, 
	number INTEGER NOT NULL, 
	"plan" TEXT NOT NULL, 
	resume_from TEXT, 
	state VARCHAR(20) NOT NULL, 
	cause TEXT, 
	stop VARCHAR(20), 
	rendezvous_port INTEGER, 
	queued_at DATETIME NOT NULL, 
	started_at DATETIME NOT NULL, 
	first_step_at DATETIME, 
	ended_at DATETIME, 
	CONSTRAINT pk_attempts PRIMARY KEY (job, number), 
	CONSTRAINT fk_attempts_job FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "attempts" VALUES('toy-65817cea',1,'{"workers":[{"rank":0,"role":"trainer","role_rank":0,"node":"trainer-0","threads":1,"gpu":null}],"addresses":{"trainer-0":"10.0.0.9"}}',NULL,'succeeded',NULL,NULL,NULL,'2026-11-21 22:33:08.213636','2026-11-21 22:33:08.956819',NULL,'2026-11-21 22:33:09.982439');
INSERT INTO "attempts" VALUES('toy-2bc5673a',1,'{"workers":[{"rank":0,"role":"trainer","role_rank":0,"node":"trainer-0","threads":1,"gpu":null},{"rank":1,"role":"trainer","role_rank":1,"node":"trainer-0","threads":1,"gpu":null}],"addresses":{"trainer-0":"10.0.0.9"}}',NULL,'running',NULL,NULL,4711,'2026-11-21 22:33:10.570020','2026-11-21 22:33:11.021285','2026-11-21 22:33:12.342946',NULL);
CREATE TABLE checkpoints (
	job VARCHAR(200) NOT NULL, 
	attempt INTEGER NOT NULL, 
	step BIGINT NOT NULL, 
	keep BOOLEAN NOT NULL, 
	manifest TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_checkpoints PRIMARY KEY (job, attempt, step), 
	CONSTRAINT fk_checkpoints_job FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "checkpoints" VALUES('toy-2bc5673a',1,5,0,'{"attempt":1,"step":5,"parts":[{"name":"part","blob":"1/step-5/part","size":12,"sha256":"b8ad835cf8c3383ba64aca2fe919a28772cd4dce316a2aa392ad58af113a937e"}],"position":{"step":5},"keep":false}','2026-11-21 22:33:12.283055');
CREATE TABLE events (
	id INTEGER NOT NULL, 
	job VARCHAR(200) NOT NULL, 
	at DATETIME NOT NULL, 
	attempt INTEGER, 
	kind VARCHAR(40) NOT NULL, 
	message TEXT NOT NULL, 
	origin VARCHAR(300), 
	CONSTRAINT pk_events PRIMARY KEY (id), 
	CONSTRAINT fk_events_job FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_events_origin UNIQUE (origin)
);
INSERT INTO "events" VALUES(1,'toy-65817cea','2026-11-21 22:33:08.213636',NULL,'queued','submitted',NULL);
INSERT INTO "events" VALUES(2,'toy-65817cea','2026-11-21 22:33:08.956819',1,'placed','1 workers placed',NULL);
INSERT INTO "events" VALUES(3,'toy-65817cea','2026-11-21 22:33:09.405526',1,'running','running',NULL);
INSERT INTO "events" VALUES(4,'toy-65817cea','2026-11-21 22:33:09.982439',1,'succeeded','succeeded',NULL);
INSERT INTO "events" VALUES(5,'toy-2bc5673a','2026-11-21 22:33:10.570020',NULL,'queued','submitted',NULL);
INSERT INTO "events" VALUES(6,'toy-2bc5673a','2026-11-21 22:33:11.021285',1,'placed','2 workers placed',NULL);
INSERT INTO "events" VALUES(7,'toy-2bc5673a','2026-11-21 22:33:12.035864',1,'running','running',NULL);
INSERT INTO "events" VALUES(8,'toy-4b1453bc','2026-11-21 22:33:13.782806',NULL,'queued','submitted',NULL);
INSERT INTO "events" VALUES(9,'toy-f0d90706','2026-11-21 22:33:13.966286',NULL,'queued','submitted',NULL);
INSERT INTO "events" VALUES(10,'toy-f0d90706','2026-11-21 22:33:14.161564',NULL,'paused','paused by its user',NULL);
CREATE TABLE idempotency (
	"key" VARCHAR(255) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	job VARCHAR(200) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_idempotency PRIMARY KEY ("key"), 
	CONSTRAINT fk_idempotency_job FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE jobs (
	sequence INTEGER NOT NULL, 
	id VARCHAR(200) NOT NULL, 
	name TEXT NOT NULL, 
	workload TEXT NOT NULL, 
	params TEXT NOT NULL, 
	roles TEXT NOT NULL, 
	priority INTEGER NOT NULL, 
	max_restarts INTEGER NOT NULL, 
	deadline_s FLOAT, 
	state VARCHAR(20) NOT NULL, 
	reason TEXT, 
	waiting_for TEXT, 
	attempt INTEGER NOT NULL, 
	restarts INTEGER NOT NULL, 
	crashes INTEGER NOT NULL, 
	progress TEXT NOT NULL, 
	result TEXT, 
	created_at DATETIME NOT NULL, 
	queued_at DATETIME NOT NULL, 
	not_before DATETIME, 
	deadline_at DATETIME, 
	started_at DATETIME, 
	ended_at DATETIME, 
	CONSTRAINT pk_jobs PRIMARY KEY (sequence), 
	CONSTRAINT uq_jobs_id UNIQUE (id)
);
INSERT INTO "jobs" VALUES(1,'toy-65817cea','done','toy','{"steps":10,"learning_rate":0.1}','{"trainer":1}',0,3,NULL,'succeeded',NULL,NULL,1,0,0,'{"step":0,"steps":null,"epoch":null,"loss":null,"samples_per_s":null,"seconds_left":null,"start_s":null,"metrics":{}}','{"auc":0.9}','2026-11-21 22:33:08.213636','2026-11-21 22:33:08.213636',NULL,NULL,'2026-11-21 22:33:09.405526','2026-11-21 22:33:09.982439');
INSERT INTO "jobs" VALUES(2,'toy-2bc5673a','runs','toy','{"steps":10,"learning_rate":0.1}','{"trainer":2}',0,3,100000000.0,'running',NULL,NULL,1,0,0,'{"step":6,"steps":9,"epoch":0,"loss":0.25,"samples_per_s":3.5,"seconds_left":1.5,"start_s":null,"metrics":{}}',NULL,'2026-11-21 22:33:10.570020','2026-11-21 22:33:10.570020',NULL,'2030-01-22 08:19:50.570020','2026-11-21 22:33:12.035864',NULL);
INSERT INTO "jobs" VALUES(3,'toy-4b1453bc','waits','toy','{"steps":10,"learning_rate":0.1}','{"trainer":9}',0,3,NULL,'queued',NULL,'waiting for 9 trainer slots: the cluster has 3 in all; add nodes or ask for fewer',0,0,0,'{"step":0,"steps":null,"epoch":null,"loss":null,"samples_per_s":null,"seconds_left":null,"start_s":null,"metrics":{}}',NULL,'2026-11-21 22:33:13.782806','2026-11-21 22:33:13.782806',NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(4,'toy-f0d90706','paused','toy','{"steps":10,"learning_rate":0.1}','{"trainer":9}',0,3,NULL,'paused','paused by its user',NULL,0,0,0,'{"step":0,"steps":null,"epoch":null,"loss":null,"samples_per_s":null,"seconds_left":null,"start_s":null,"metrics":{}}',NULL,'2026-11-21 22:33:13.966286','2026-11-21 22:33:13.966286',NULL,NULL,NULL,NULL);
CREATE TABLE nodes (
	name VARCHAR(80) NOT NULL, 
	spec TEXT NOT NULL, 
	started TEXT NOT NULL, 
	draining BOOLEAN NOT NULL, 
	registered_at DATETIME NOT NULL, 
	CONSTRAINT pk_nodes PRIMARY KEY (name)
);
INSERT INTO "nodes" VALUES('trainer-0','{"name":"trainer-0","role":"trainer","slots":3,"address":"10.0.0.9","interface":"eth0","network_namespace":"","metrics_port":0,"machine":{"boot_id":"m0","hostname":"m0","cores":4,"cpu_slots":4,"memory_bytes":1,"gpus":[],"exclusive":false},"version":"0.1.0","started":"trainer-0-first"}','trainer-0-first',0,'2026-11-21 22:33:07.156239');
CREATE TABLE workers (
	job VARCHAR(200) NOT NULL, 
	attempt INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	role VARCHAR(40) NOT NULL, 
	role_rank INTEGER NOT NULL, 
	node VARCHAR(80) NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	pid INTEGER, 
	exit_code INTEGER, 
	failure TEXT, 
	spawned_at DATETIME, 
	joined_at DATETIME, 
	CONSTRAINT pk_workers PRIMARY KEY (job, attempt, rank), 
	CONSTRAINT fk_workers_job_attempt FOREIGN KEY(job, attempt) REFERENCES attempts (job, number) ON DELETE CASCADE
);
INSERT INTO "workers" VALUES('toy-65817cea',1,0,'trainer',0,'trainer-0','succeeded',100,0,NULL,'2026-11-21 22:33:09.566300','2026-11-21 22:33:09.230893');
INSERT INTO "workers" VALUES('toy-2bc5673a',1,0,'trainer',0,'trainer-0','running',100,NULL,NULL,'2026-11-21 22:33:11.694056','2026-11-21 22:33:11.694056');
INSERT INTO "workers" VALUES('toy-2bc5673a',1,1,'trainer',1,'trainer-0','running',101,NULL,NULL,'2026-11-21 22:33:11.994309','2026-11-21 22:33:11.994309');
CREATE INDEX ix_jobs_state ON jobs (state);
CREATE INDEX ix_events_job_id ON events (job, id);
CREATE INDEX ix_workers_node_state ON workers (node, state);
COMMIT;
