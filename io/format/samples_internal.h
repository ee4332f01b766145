/* The readers of samples share this: each layout is a table of functions over a structure that begins with
 * gradcomp_samples.
 *
 * Nothing of it changes after open() but descriptors that are put in by one atomic
 * exchange, so that calls need no locks: they may come from any thread, and from a
 * child that was forked while another thread was in one. */
#ifndef IO_FORMAT_SAMPLES_INTERNAL_H
#define IO_FORMAT_SAMPLES_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"
#include "gradcomp/samples.h"

#define SAMPLES_WORKERS 8u

typedef struct sample_ops {
	void (*close)(gradcomp_samples *s); /* frees the structure too */
	/* `index` and `part` have been checked. */
	const char *(*key)(const gradcomp_samples *s, uint64_t index);
	int32_t (*label)(const gradcomp_samples *s, uint64_t index);
	uint32_t (*nparts)(const gradcomp_samples *s, uint64_t index);
	gradcomp_status (*part)(const gradcomp_samples *s, uint64_t index, uint32_t part, const char **name,
	                        uint64_t *bytes, gradcomp_error *err);
	/* Does what gradcomp_samples_read() says; *bytes is set before RANGE is returned. */
	gradcomp_status (*read)(const gradcomp_samples *s, uint64_t index, uint32_t part, void *buf, uint64_t capacity,
	                        uint64_t *bytes, gradcomp_error *err);
} sample_ops;

struct gradcomp_samples {
	const sample_ops *ops;
	gradcomp_sample_format format;
	uint64_t count;
	char *path; /* the path that was given, for messages */
	const char *const *classes;
	uint32_t nclasses;
};

/* `guessed`: nobody has said that it is one, so it must look like one in every way. */
gradcomp_status folder_open(int fd, char *path, const char *suffixes, bool guessed, uint32_t workers,
                            gradcomp_samples **out, gradcomp_error *err);
/* `fd` is a directory with shards, or a shard. */
gradcomp_status tar_open(int fd, char *path, bool directory, uint32_t workers, gradcomp_samples **out,
                         gradcomp_error *err);
/* The shards of a list; `path` is what it was made of. */
struct shard_names;
gradcomp_status tar_open_list(struct shard_names *names, char *path, uint32_t workers, gradcomp_samples **out,
                              gradcomp_error *err);

/* openat_beneath.c */

/* Opens a path below `root`. Symbolic links are followed as long as they stay below
 * it: EXDEV when one leads out. -1 and errno. */
int openat_beneath(int root, const char *path, int flags);
/* Does the same without openat2(), for kernels before 5.6. */
int openat_beneath_fallback(int root, const char *path, int flags);
/* The same for a file of a dataset, which must still be one; open only with OK. */
struct stat;
gradcomp_status openat_sample(int root, const char *path, int flags, int *fd, struct stat *st, gradcomp_error *err);
/* All n bytes at `at`: 1, 0 when the file ends before, -1 and errno. */
int openat_read_whole(int fd, void *buf, uint64_t n, uint64_t at);
/* RANGE, for a buffer that is too small. */
gradcomp_status openat_range(gradcomp_error *err, const char *name, uint64_t bytes, uint64_t capacity);

/* listing.c */

typedef struct file_list {
	char **paths; /* relative to the root, sorted as bytes */
	int32_t *labels;
	uint64_t n;
	char **folders; /* names of the first folders, sorted: what labels count */
	uint32_t nfolders;
	struct list_text **text; /* the memory of the strings, one chain a thread */
	uint32_t ntext;
} file_list;

/* Hidden, or one of the names that systems leave in folders: lost+found, __MACOSX ... */
bool listing_passed_over(const char *name);
/* Regular files below `root` but those that are passed over. `suffixes`: "jpg/png" or NULL. */
gradcomp_status listing_files(int root, const char *name, const char *suffixes, uint32_t workers, file_list *out,
                              gradcomp_error *err);
void listing_clear(file_list *l);
/* layout.c */

/* A folder that nobody has called one: refused when it has shards or archives in it, the folders of
 * a split, files beside folders, or all in one folder. */
gradcomp_status layout_check_folder(const file_list *files, const char *path, bool all, gradcomp_error *err);
/* The shards of a directory: refused when some lie in folders of it, or belong to several splits. */
gradcomp_status layout_check_shards(const file_list *files, const char *path, gradcomp_error *err);
/* Which split a name is of: 1 training, 2 validation, 4 test; 0 none. With `anywhere` each of its
 * words counts, else the first. */
unsigned layout_split(const char *name, bool anywhere);
/* INVALID for data that is a pointer of Git LFS. */
gradcomp_status layout_check_data(const char *name, const void *data, uint64_t bytes, gradcomp_error *err);

/* Returns true when the name ends in a dot and one of the suffixes, capitals or not. */
bool listing_suffix(const char *name, const char *suffixes);

#endif
