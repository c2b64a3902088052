create table format (version integer not null);
insert into format values (1);

create table chunk (
  hash bytea primary key,
  generation bigint not null,
  terminal boolean not null,
  data bytea not null
);
alter table chunk alter column data set storage external;
create index chunk_young on chunk (generation) where not terminal;

create table blob (
  hash bytea primary key,
  generation bigint not null,
  data bytea not null
);
alter table blob alter column data set storage external;

create sequence revision_sequence;

create table ref (
  name text collate "C" primary key,
  root bytea not null,
  sequence bigint not null
);

create table revision (
  sequence bigint primary key,
  name text collate "C" not null,
  old bytea,
  new bytea,
  at bigint not null,
  author text not null,
  message text not null,
  recorded timestamptz not null default clock_timestamp()
);
create index revision_of_ref on revision (name, sequence);
create index revision_recorded on revision (recorded);

create table lease (
  holder text collate "C" primary key,
  root bytea not null,
  expires bigint
);

create table process (
  id bigint generated always as identity primary key,
  connections integer not null,
  seen timestamptz not null default clock_timestamp()
);

create table pin (
  process bigint not null,
  root bytea not null,
  primary key (process, root)
);

create table hold (
  process bigint not null,
  number bigint not null,
  generation bigint not null,
  primary key (process, number)
);

create table keep (
  process bigint not null,
  kind smallint not null,
  hash bytea not null,
  hold bigint not null,
  primary key (process, kind, hash)
);

create table token (
  process bigint not null,
  number bigint not null,
  primary key (process, number)
);

create table condemned (
  kind smallint not null,
  hash bytea not null,
  bytes bigint not null,
  primary key (kind, hash)
);

create table collection (
  generation bigint not null,
  stage smallint not null
);
insert into collection values (1, 0);
