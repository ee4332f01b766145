/* A folder: each file is a sample of one part without a name. Sizes are asked for
 * when they are wanted, so that opening needs nothing but the names. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "io/format/samples_internal.h"

struct folder {
	gradcomp_samples base;
	int root;
	file_list files;
};

static void folder_close(gradcomp_samples *s)
{
	struct folder *t = (struct folder *)s;
	close(t->root);
	listing_clear(&t->files);
	free(t->base.path);
	free(t);
}

static const char *folder_key(const gradcomp_samples *s, uint64_t index)
{
	return ((const struct folder *)s)->files.paths[index];
}

static int32_t folder_label(const gradcomp_samples *s, uint64_t index)
{
	return ((const struct folder *)s)->files.labels[index];
}

static uint32_t folder_nparts(const gradcomp_samples *s, uint64_t index)
{
	(void)s, (void)index;
	return 1;
}

static gradcomp_status folder_part(const gradcomp_samples *s, uint64_t index, uint32_t part, const char **name,
                                   uint64_t *bytes, gradcomp_error *err)
{
	const struct folder *t = (const struct folder *)s;
	struct stat sb = {0};
	int fd;
	(void)part;
	gradcomp_status st = bytes ? openat_sample(t->root, folder_key(s, index), O_PATH, &fd, &sb, err) : GRADCOMP_OK;
	if (st)
		return st;
	if (name)
		*name = "";
	if (bytes) {
		close(fd);
		*bytes = (uint64_t)sb.st_size;
	}
	return GRADCOMP_OK;
}

static gradcomp_status folder_read(const gradcomp_samples *s, uint64_t index, uint32_t part, void *buf,
                                   uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	const struct folder *t = (const struct folder *)s;
	const char *path = folder_key(s, index);
	char name[TEXT_NAME_MAX];
	struct stat sb;
	int fd;
	(void)part;
	gradcomp_status st = openat_sample(t->root, path, O_RDONLY, &fd, &sb, err);
	if (st)
		return st;
	*bytes = (uint64_t)sb.st_size;
	if (*bytes > capacity) {
		st = openat_range(err, path, *bytes, capacity);
	} else {
		int whole = openat_read_whole(fd, buf, *bytes, 0);
		if (whole < 0)
			st = text_cannot(err, "read", path);
		else if (!whole)
			st = error_set(err, GRADCOMP_ERR_STATE, "%s became shorter while it was read",
			               gradcomp_printable(path, name, sizeof name));
		else
			st = layout_check_data(path, buf, *bytes, err);
	}
	close(fd);
	return st;
}

static const sample_ops folder_ops = {
	.close = folder_close,
	.key = folder_key,
	.label = folder_label,
	.nparts = folder_nparts,
	.part = folder_part,
	.read = folder_read,
};

gradcomp_status folder_open(int fd, char *path, const char *suffixes, bool guessed, uint32_t workers,
                            gradcomp_samples **out, gradcomp_error *err)
{
	struct folder *t = calloc(1, sizeof *t);
	gradcomp_status st =
		t ? listing_files(fd, path, suffixes, workers, &t->files, err) : text_cannot(err, "open", path);
	if (!st && guessed && (st = layout_check_folder(&t->files, path, !suffixes, err)))
		listing_clear(&t->files);
	if (st) {
		close(fd);
		free(path);
		free(t);
		return st;
	}
	t->root = fd;
	t->base = (gradcomp_samples){.ops = &folder_ops,
	                             .format = GRADCOMP_SAMPLES_FOLDER,
	                             .count = t->files.n,
	                             .path = path,
	                             .classes = (const char *const *)t->files.folders,
	                             .nclasses = t->files.nfolders};
	*out = &t->base;
	return GRADCOMP_OK;
}
