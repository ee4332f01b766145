/* Tar shards: an index of each in memory, made on several threads, and reads by
 * position. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "base/thread_pool.h"
#include "io/format/samples_internal.h"
#include "io/format/tar_format.h"
#include "io/format/tar_index.h"

/* Shards whose descriptors stay open; others are opened for each read. */
#define OPEN_MOST 256u
#define OPEN_FEWEST 16u

struct shard {
	const char *path; /* below the root; the path that was given when it is alone */
	atomic_int fd;    /* -1: not open */
	uint64_t first;   /* number of its first sample */
	dev_t dev;
	ino_t ino;
	off_t bytes;
	struct timespec mtime;
	tar_index index;
};

struct tar {
	gradcomp_samples base;
	int root; /* -1: there is one shard, open */
	file_list files;
	struct shard *shards;
	uint64_t nshards;
	atomic_uint open;
	unsigned open_max;
};

static void tar_free(gradcomp_samples *s)
{
	struct tar *t = (struct tar *)s;
	for (uint64_t i = 0; t->shards && i < t->nshards; i++) {
		int fd = atomic_load(&t->shards[i].fd);
		if (fd >= 0)
			close(fd);
		tar_index_clear(&t->shards[i].index);
	}
	free(t->shards);
	list_clear(&t->files);
	if (t->root >= 0)
		close(t->root);
	free(t->base.path);
	free(t);
}

/* The descriptor stays in the shard when there may be more open ones: true. */
static bool keep_open(struct tar *t, struct shard *sh, int fd)
{
	int none = -1;
	if (atomic_fetch_add(&t->open, 1) < t->open_max && atomic_compare_exchange_strong(&sh->fd, &none, fd))
		return true;
	atomic_fetch_sub(&t->open, 1);
	return false;
}

static bool as_indexed(const struct shard *sh, const struct stat *st)
{
	return st->st_dev == sh->dev && st->st_ino == sh->ino && st->st_size == sh->bytes &&
	       st->st_mtim.tv_sec == sh->mtime.tv_sec && st->st_mtim.tv_nsec == sh->mtime.tv_nsec;
}

/* A descriptor of the shard; *own: the caller closes it. */
static gradcomp_status shard_fd(struct tar *t, struct shard *sh, int *fd, bool *own, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	struct stat st;
	*own = false;
	if ((*fd = atomic_load(&sh->fd)) >= 0)
		return GRADCOMP_OK;
	gradcomp_status status = openat_sample(t->root, sh->path, O_RDONLY, fd, &st, err);
	if (status)
		return status;
	if (!as_indexed(sh, &st)) {
		close(*fd);
		return error_set(err, GRADCOMP_ERR_STATE, "%s was changed after it was opened",
		                 gradcomp_printable(sh->path, name, sizeof name));
	}
	*own = !keep_open(t, sh, *fd);
	return GRADCOMP_OK;
}

static const struct shard *shard_of(const gradcomp_samples *s, uint64_t index)
{
	const struct tar *t = (const struct tar *)s;
	uint64_t low = 0, high = t->nshards;
	/* The last one that begins at or before it; empty ones before it begin there too. */
	while (high - low > 1) {
		uint64_t mid = low + (high - low) / 2;
		if (t->shards[mid].first <= index)
			low = mid;
		else
			high = mid;
	}
	return &t->shards[low];
}

static const tar_sample *sample_of(const gradcomp_samples *s, uint64_t index, const struct shard **shard)
{
	*shard = shard_of(s, index);
	return &(*shard)->index.samples[index - (*shard)->first];
}

static const char *tar_key(const gradcomp_samples *s, uint64_t index)
{
	const struct shard *sh;
	const tar_sample *sample = sample_of(s, index, &sh);
	return sh->index.text + sample->key;
}

static int32_t tar_label(const gradcomp_samples *s, uint64_t index)
{
	const struct shard *sh;
	return sample_of(s, index, &sh)->label;
}

static uint32_t tar_nparts(const gradcomp_samples *s, uint64_t index)
{
	const struct shard *sh;
	return sample_of(s, index, &sh)->nparts;
}

static gradcomp_status tar_part_of(const gradcomp_samples *s, uint64_t index, uint32_t part, const char **name,
                                   uint64_t *bytes, gradcomp_error *err)
{
	const struct shard *sh;
	const tar_sample *sample = sample_of(s, index, &sh);
	const tar_part *p = &sh->index.parts[sample->first + part];
	(void)err;
	if (name)
		*name = sh->index.text + p->name;
	if (bytes)
		*bytes = p->bytes;
	return GRADCOMP_OK;
}

static gradcomp_status tar_read(const gradcomp_samples *s, uint64_t index, uint32_t part, void *buf,
                                uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	const struct shard *sh;
	const tar_sample *sample = sample_of(s, index, &sh);
	const tar_part *p = &sh->index.parts[sample->first + part];
	char name[TEXT_NAME_MAX];
	bool own;
	int fd;
	*bytes = p->bytes;
	if (p->bytes > capacity)
		return samples_range(err, sh->index.text + sample->key, p->bytes, capacity);
	/* Of what is behind the samples only descriptors change. */
	gradcomp_status status = shard_fd((struct tar *)s, (struct shard *)sh, &fd, &own, err);
	if (status)
		return status;
	int whole = read_whole(fd, buf, p->bytes, p->at);
	if (whole < 0)
		status = error_cannot(err, "read", sh->path);
	else if (!whole)
		status = error_set(err, GRADCOMP_ERR_STATE, "%s became shorter than byte %llu, where a part ends",
		                   gradcomp_printable(sh->path, name, sizeof name),
		                   (unsigned long long)(p->at + p->bytes));
	if (own)
		close(fd);
	return status;
}

static const sample_ops tar_ops = {
	.close = tar_free,
	.key = tar_key,
	.label = tar_label,
	.nparts = tar_nparts,
	.part = tar_part_of,
	.read = tar_read,
};

static gradcomp_status index_fd(struct shard *sh, int fd, const struct stat *st, gradcomp_error *err)
{
	sh->dev = st->st_dev;
	sh->ino = st->st_ino;
	sh->bytes = st->st_size;
	sh->mtime = st->st_mtim;
	/* Headers are far apart: what is between them is not to be read ahead. */
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	gradcomp_status status = tar_index_make(fd, (uint64_t)st->st_size, sh->path, &sh->index, err);
	posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL);
	return status;
}

static gradcomp_status index_shard(void *ctx, uint32_t worker, uint64_t i, gradcomp_error *err)
{
	struct tar *t = ctx;
	struct shard *sh = &t->shards[i];
	struct stat st;
	int fd;
	(void)worker;
	gradcomp_status status = openat_sample(t->root, sh->path, O_RDONLY, &fd, &st, err);
	if (status)
		return status;
	status = index_fd(sh, fd, &st, err);
	if (status || !keep_open(t, sh, fd))
		close(fd);
	return status;
}

/* The one that was given by its path, and is open. */
static gradcomp_status index_alone(struct shard *sh, int fd, gradcomp_error *err)
{
	struct stat st;
	return fstat(fd, &st) < 0 ? error_cannot(err, "look at", sh->path) : index_fd(sh, fd, &st, err);
}

static unsigned open_limit(void)
{
	struct rlimit l;
	if (getrlimit(RLIMIT_NOFILE, &l) < 0)
		return OPEN_FEWEST;
	rlim_t share = l.rlim_cur / 4;
	return share < OPEN_FEWEST ? OPEN_FEWEST : share > OPEN_MOST ? OPEN_MOST : (unsigned)share;
}

static gradcomp_status list_shards(struct tar *t, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX], shown[TEXT_NAME_MAX];
	gradcomp_status status = list_files(t->root, t->base.path, "tar/" TAR_COMPRESSED, 1, &t->files, err);
	if (status)
		return status;
	for (uint64_t i = 0; i < t->files.n; i++)
		if (!list_suffix(t->files.paths[i], "tar"))
			return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
			                 "%s holds %s: compressed shards cannot be read in parts; unpack them to "
			                 ".tar",
			                 gradcomp_printable(t->base.path, name, sizeof name),
			                 gradcomp_printable(t->files.paths[i], shown, sizeof shown));
	if (!t->files.n)
		return error_set(err, GRADCOMP_ERR_NOTFOUND, "%s holds no shard, no file whose name ends in .tar",
		                 gradcomp_printable(t->base.path, name, sizeof name));
	return GRADCOMP_OK;
}

gradcomp_status tar_open(int fd, char *path, bool directory, uint32_t workers, gradcomp_samples **out,
                         gradcomp_error *err)
{
	struct tar *t = calloc(1, sizeof *t);
	gradcomp_status status = GRADCOMP_OK;
	if (!t) {
		status = error_cannot(err, "open", path);
		close(fd);
		free(path);
		return status;
	}
	t->base = (gradcomp_samples){.ops = &tar_ops, .format = GRADCOMP_SAMPLES_TAR, .path = path};
	t->root = directory ? fd : -1;
	t->open_max = open_limit();
	if (directory)
		status = list_shards(t, err);
	if (!status) {
		t->nshards = directory ? t->files.n : 1;
		if (!(t->shards = calloc(t->nshards, sizeof *t->shards)))
			status = error_cannot(err, "open", path);
	}
	for (uint64_t i = 0; t->shards && i < t->nshards; i++) {
		t->shards[i].path = directory ? t->files.paths[i] : path;
		atomic_init(&t->shards[i].fd, directory ? -1 : fd);
	}
	if (!directory && !t->shards)
		close(fd);
	if (!status)
		status = directory ? thread_pool_each((int)workers, t->nshards, index_shard, t, err)
		                   : index_alone(&t->shards[0], fd, err);
	for (uint64_t i = 0; !status && i < t->nshards; i++) {
		t->shards[i].first = t->base.count;
		t->base.count += t->shards[i].index.nsamples;
	}
	if (status) {
		tar_free(&t->base);
		return status;
	}
	*out = &t->base;
	return GRADCOMP_OK;
}
