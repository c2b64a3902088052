create table note (
  name text collate "C" primary key,
  data bytea not null
);
