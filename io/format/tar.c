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
#include "io/format/shard_names.h"
#include "io/format/tar_format.h"
#include "io/format/tar_index.h"

/* Shards whose descriptors stay open; others are opened for each read. */
#define OPEN_MOST 256u
#define OPEN_FEWEST 16u

struct shard {
	const char *path; /* below the root; absolute in a list; as it was given when it is alone */
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
	int root; /* -1: there is one shard, open, or a list */
	file_list files;
	shard_names list;
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
	listing_clear(&t->files);
	shard_names_clear(&t->list);
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

/* Opens a shard below the root, or of a list. */
static gradcomp_status open_shard(const struct tar *t, const char *path, int *fd, struct stat *st, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	if (t->root >= 0)
		return openat_sample(t->root, path, O_RDONLY, fd, st, err);
	/* Non-blocking, should it be a FIFO. */
	*fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (*fd < 0 && (errno == ENOENT || errno == ENOTDIR))
		return error_set(err, GRADCOMP_ERR_NOTFOUND, "there is no %s",
		                 gradcomp_printable(path, name, sizeof name));
	if (*fd < 0)
		return text_cannot(err, "read", path);
	if (fstat(*fd, st) == 0 && S_ISREG(st->st_mode))
		return GRADCOMP_OK;
	bool directory = S_ISDIR(st->st_mode);
	close(*fd);
	gradcomp_printable(path, name, sizeof name);
	return error_set(err, GRADCOMP_ERR_INVALID,
	                 directory ? "%s is a folder, in a list of shards: name its shards, as %.300s/*.tar"
	                           : "%s is no file",
	                 name, name);
}

/* Gives a descriptor of the shard; *own: the caller closes it. */
static gradcomp_status shard_fd(struct tar *t, struct shard *sh, int *fd, bool *own, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	struct stat sb;
	*own = false;
	if ((*fd = atomic_load(&sh->fd)) >= 0)
		return GRADCOMP_OK;
	gradcomp_status st = open_shard(t, sh->path, fd, &sb, err);
	if (st)
		return st;
	if (!as_indexed(sh, &sb)) {
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

static gradcomp_status tar_read(const gradcomp_samples *s, uint64_t index, uint32_t part, void *buf, uint64_t capacity,
                                uint64_t *bytes, gradcomp_error *err)
{
	const struct shard *sh;
	const tar_sample *sample = sample_of(s, index, &sh);
	const tar_part *p = &sh->index.parts[sample->first + part];
	char name[TEXT_NAME_MAX];
	bool own;
	int fd;
	*bytes = p->bytes;
	if (p->bytes > capacity)
		return openat_range(err, sh->index.text + sample->key, p->bytes, capacity);
	/* Only the descriptors change behind the samples. */
	gradcomp_status st = shard_fd((struct tar *)s, (struct shard *)sh, &fd, &own, err);
	if (st)
		return st;
	int whole = openat_read_whole(fd, buf, p->bytes, p->at);
	if (whole < 0)
		st = text_cannot(err, "read", sh->path);
	else if (!whole)
		st = error_set(err, GRADCOMP_ERR_STATE, "%s became shorter than byte %llu, where a part ends",
		               gradcomp_printable(sh->path, name, sizeof name), (unsigned long long)(p->at + p->bytes));
	else
		st = layout_check_data(sh->index.text + sample->key, buf, p->bytes, err);
	if (own)
		close(fd);
	return st;
}

static const sample_ops tar_ops = {
	.close = tar_free,
	.key = tar_key,
	.label = tar_label,
	.nparts = tar_nparts,
	.part = tar_part_of,
	.read = tar_read,
};

static gradcomp_status index_fd(struct shard *sh, int fd, const struct stat *sb, gradcomp_error *err)
{
	sh->dev = sb->st_dev;
	sh->ino = sb->st_ino;
	sh->bytes = sb->st_size;
	sh->mtime = sb->st_mtim;
	/* Headers are far apart: what is between them is not to be read ahead. */
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	gradcomp_status st = tar_index_make(fd, (uint64_t)sb->st_size, sh->path, &sh->index, err);
	posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL);
	return st;
}

static gradcomp_status index_shard(void *ctx, uint32_t worker, uint64_t i, gradcomp_error *err)
{
	struct tar *t = ctx;
	struct shard *sh = &t->shards[i];
	struct stat sb;
	int fd;
	(void)worker;
	gradcomp_status st = open_shard(t, sh->path, &fd, &sb, err);
	if (st)
		return st;
	st = index_fd(sh, fd, &sb, err);
	if (st || !keep_open(t, sh, fd))
		close(fd);
	return st;
}

/* The one that was given by its path, and is open. */
static gradcomp_status index_alone(struct shard *sh, int fd, gradcomp_error *err)
{
	struct stat st;
	return fstat(fd, &st) < 0 ? text_cannot(err, "look at", sh->path) : index_fd(sh, fd, &st, err);
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
	gradcomp_status st = listing_files(t->root, t->base.path, "tar/" TAR_COMPRESSED, 1, &t->files, err);
	if (st)
		return st;
	for (uint64_t i = 0; i < t->files.n; i++)
		if (!listing_suffix(t->files.paths[i], "tar"))
			return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
			                 "%s holds %s: compressed shards cannot be read in parts; unpack them to "
			                 ".tar",
			                 gradcomp_printable(t->base.path, name, sizeof name),
			                 gradcomp_printable(t->files.paths[i], shown, sizeof shown));
	if (!t->files.n)
		return error_set(err, GRADCOMP_ERR_NOTFOUND, "%s holds no shard, no file whose name ends in .tar",
		                 gradcomp_printable(t->base.path, name, sizeof name));
	return layout_check_shards(&t->files, t->base.path, err);
}

static int by_inode(const void *a, const void *b)
{
	const struct shard *x = *(struct shard *const *)a, *y = *(struct shard *const *)b;
	int order = (x->dev > y->dev) - (x->dev < y->dev);
	return order ? order : (x->ino > y->ino) - (x->ino < y->ino);
}

/* Refuses a shard under two names: it would give each of its samples twice. */
static gradcomp_status refuse_twice(const struct tar *t, gradcomp_error *err)
{
	char one[TEXT_NAME_MAX / 2], two[TEXT_NAME_MAX / 2];
	const struct shard **order = t->nshards > 1 ? reallocarray(NULL, t->nshards, sizeof(struct shard *)) : NULL;
	gradcomp_status st = GRADCOMP_OK;
	if (t->nshards < 2)
		return st;
	if (!order)
		return text_cannot(err, "open", t->base.path);
	for (uint64_t i = 0; i < t->nshards; i++)
		order[i] = &t->shards[i];
	qsort(order, t->nshards, sizeof(struct shard *), by_inode);
	for (uint64_t i = 1; !st && i < t->nshards; i++)
		if (!by_inode(&order[i - 1], &order[i]))
			st = error_set(err, GRADCOMP_ERR_INVALID,
			               "%s and %s are one file: each of its samples would come twice",
			               gradcomp_printable(order[i - 1]->path, one, sizeof one),
			               gradcomp_printable(order[i]->path, two, sizeof two));
	free(order);
	return st;
}

/* Indexes `n` shards called names[]; `fd`: the only one, open already, or -1. */
static gradcomp_status index_shards(struct tar *t, char *const *names, uint64_t n, int fd, uint32_t workers,
                                    gradcomp_error *err)
{
	if (!(t->shards = calloc(n, sizeof *t->shards))) {
		gradcomp_status st = text_cannot(err, "open", t->base.path);
		if (fd >= 0)
			close(fd);
		return st;
	}
	t->nshards = n;
	for (uint64_t i = 0; i < n; i++) {
		t->shards[i].path = names[i];
		atomic_init(&t->shards[i].fd, fd);
	}
	gradcomp_status st =
		fd < 0 ? thread_pool_each((int)workers, n, index_shard, t, err) : index_alone(&t->shards[0], fd, err);
	if (!st)
		st = refuse_twice(t, err);
	for (uint64_t i = 0; !st && i < n; i++) {
		t->shards[i].first = t->base.count;
		t->base.count += t->shards[i].index.nsamples;
	}
	return st;
}

/* NULL without memory. */
static struct tar *tar_new(char *path, int root)
{
	struct tar *t = calloc(1, sizeof *t);
	if (!t)
		return NULL;
	t->base = (gradcomp_samples){.ops = &tar_ops, .format = GRADCOMP_SAMPLES_TAR, .path = path};
	t->root = root;
	t->open_max = open_limit();
	return t;
}

static gradcomp_status tar_made(struct tar *t, gradcomp_status status, gradcomp_samples **out)
{
	if (status)
		tar_free(&t->base);
	else
		*out = &t->base;
	return status;
}

gradcomp_status tar_open(int fd, char *path, bool directory, uint32_t workers, gradcomp_samples **out,
                         gradcomp_error *err)
{
	struct tar *t = tar_new(path, directory ? fd : -1);
	gradcomp_status st;
	if (!t) {
		st = text_cannot(err, "open", path);
		close(fd);
		free(path);
		return st;
	}
	st = directory ? list_shards(t, err) : GRADCOMP_OK;
	if (!st)
		st = directory ? index_shards(t, t->files.paths, t->files.n, -1, workers, err)
		               : index_shards(t, &t->base.path, 1, fd, workers, err);
	return tar_made(t, st, out);
}

gradcomp_status tar_open_list(shard_names *names, char *path, uint32_t workers, gradcomp_samples **out,
                              gradcomp_error *err)
{
	struct tar *t = tar_new(path, -1);
	if (!t) {
		gradcomp_status st = text_cannot(err, "open", path);
		shard_names_clear(names);
		free(path);
		return st;
	}
	t->list = *names;
	*names = (shard_names){0};
	return tar_made(t, index_shards(t, t->list.at, t->list.n, -1, workers, err), out);
}
