/* The calls of gradcomp/samples.h: finds the layout and calls its functions. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "io/format/samples_internal.h"
#include "io/format/shard_names.h"
#include "io/format/tar_format.h"

/* Returns true when an entry at the top of the directory is a folder, or a link to one. */
static bool is_folder(int fd, const struct dirent *de)
{
	struct stat st;
	if (de->d_type != DT_LNK && de->d_type != DT_UNKNOWN)
		return de->d_type == DT_DIR;
	return fstatat(fd, de->d_name, &st, 0) == 0 && S_ISDIR(st.st_mode);
}

/* Finds out if there is a shard at the top of the directory. One with compressed shards is not taken for a folder
 * of samples: those may be what is meant. Nor is one with shards and folders taken for either. */
static gradcomp_status look_into(int fd, const char *path, gradcomp_sample_format *format, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX / 4], packed[TEXT_NAME_MAX / 4] = "", shard[TEXT_NAME_MAX / 4] = "",
							     folder[TEXT_NAME_MAX / 4] = "";
	int list = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = list < 0 ? NULL : fdopendir(list);
	struct dirent *de;
	if (!d) {
		if (list >= 0)
			close(list);
		return text_cannot(err, "list", path);
	}
	while ((errno = 0, de = readdir(d))) {
		if (listing_passed_over(de->d_name))
			continue;
		if (is_folder(fd, de))
			gradcomp_printable(de->d_name, folder, sizeof folder);
		else if (listing_suffix(de->d_name, "tar"))
			gradcomp_printable(de->d_name, shard, sizeof shard);
		else if (listing_suffix(de->d_name, TAR_COMPRESSED))
			gradcomp_printable(de->d_name, packed, sizeof packed);
	}
	int e = errno;
	closedir(d);
	errno = e;
	if (e)
		return text_cannot(err, "list", path);
	*format = *shard ? GRADCOMP_SAMPLES_TAR : GRADCOMP_SAMPLES_FOLDER;
	gradcomp_printable(path, name, sizeof name);
	if (*shard && *folder)
		return error_set(
			err, GRADCOMP_ERR_INVALID,
			"%s holds the shard %s beside the folder %s: name the shards that are meant (%s/*.tar), or the "
			"folder (%s/%s), or say format folder if all files are samples",
			name, shard, folder, name, name, folder);
	if (*packed && !*shard)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "%s holds %s: compressed shards cannot be read in parts; unpack them to .tar, or "
		                 "ask for the format folder if the files themselves are the samples",
		                 name, packed);
	return GRADCOMP_OK;
}

static gradcomp_status look_at(int fd, const char *path, gradcomp_sample_format *format, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	unsigned char head[512];
	ssize_t n;
	while ((n = pread(fd, head, sizeof head, 0)) < 0 && errno == EINTR)
		;
	if (n < 0)
		return text_cannot(err, "read", path);
	/* A file that is known and is no archive is named when it is indexed. */
	if (listing_suffix(path, "tar") || listing_suffix(path, TAR_COMPRESSED) || tar_other_content(head, (size_t)n) ||
	    (n == sizeof head && tar_looks_like(head)))
		*format = GRADCOMP_SAMPLES_TAR;
	else
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is neither a directory nor a tar archive",
		                 gradcomp_printable(path, name, sizeof name));
	return GRADCOMP_OK;
}

static gradcomp_status open_as(int fd, char *path, bool directory, bool guessed, gradcomp_sample_format format,
                               const char *suffixes, uint32_t workers, gradcomp_samples **out, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	if (format == GRADCOMP_SAMPLES_FOLDER && !directory) {
		error_set(err, GRADCOMP_ERR_INVALID, "%s is not a folder", gradcomp_printable(path, name, sizeof name));
		close(fd);
		free(path);
		return GRADCOMP_ERR_INVALID;
	}
	if (format == GRADCOMP_SAMPLES_FOLDER)
		return folder_open(fd, path, suffixes, guessed, workers, out, err);
	return tar_open(fd, path, directory, workers, out, err);
}

static gradcomp_status check_options(const char *path, const gradcomp_samples_options *o, gradcomp_error *err)
{
	if (!path || !*path)
		return error_set(err, GRADCOMP_ERR_INVALID, "samples need the path of a directory or a file");
	if (o && (!GRADCOMP_HAS(o, format) || (unsigned)o->format > GRADCOMP_SAMPLES_TAR))
		return error_set(err, GRADCOMP_ERR_INVALID, "samples: there is no format %d; struct_size is %u",
		                 GRADCOMP_HAS(o, format) ? (int)o->format : -1, o->struct_size);
	if (o && GRADCOMP_HAS(o, workers) && o->workers > 64)
		return error_set(err, GRADCOMP_ERR_INVALID, "samples: workers is %u; it can be 1 to 64, or 0",
		                 o->workers);
	return GRADCOMP_OK;
}

/* Opens the shards that a pattern names. */
static gradcomp_status open_list(const char *pattern, gradcomp_sample_format format, uint32_t workers,
                                 gradcomp_samples **out, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	shard_names names;
	if (format == GRADCOMP_SAMPLES_FOLDER)
		return error_set(err, GRADCOMP_ERR_INVALID, "there is no folder %s; a pattern names tar shards",
		                 gradcomp_printable(pattern, name, sizeof name));
	gradcomp_status st = shard_names_expand(pattern, &names, err);
	if (st)
		return st;
	char *copy = strdup(pattern);
	if (copy)
		return tar_open_list(&names, copy, workers, out, err);
	st = text_cannot(err, "open", pattern);
	shard_names_clear(&names);
	return st;
}

gradcomp_status gradcomp_samples_open(const char *path, const gradcomp_samples_options *o, gradcomp_samples **out,
                                      gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	struct stat sb;
	*out = NULL;
	gradcomp_status st = check_options(path, o, err);
	if (st)
		return st;
	gradcomp_sample_format format = o ? o->format : GRADCOMP_SAMPLES_AUTO;
	const char *suffixes = o && GRADCOMP_HAS(o, suffixes) ? o->suffixes : NULL;
	uint32_t workers = o && GRADCOMP_HAS(o, workers) && o->workers ? o->workers : SAMPLES_WORKERS;
	/* Non-blocking, should it be a FIFO. */
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	/* A file that is there is meant, whatever its name looks like. */
	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG) && shard_names_pattern(path))
		return open_list(path, format, workers, out, err);
	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
		return error_set(err, GRADCOMP_ERR_NOTFOUND, "there is no %s",
		                 gradcomp_printable(path, name, sizeof name));
	if (fd < 0 || fstat(fd, &sb) < 0) {
		st = text_cannot(err, "open", path);
		goto fail;
	}
	if (!S_ISDIR(sb.st_mode) && !S_ISREG(sb.st_mode)) {
		st = error_set(err, GRADCOMP_ERR_INVALID, "%s is neither a directory nor a file",
		               gradcomp_printable(path, name, sizeof name));
		goto fail;
	}
	bool directory = S_ISDIR(sb.st_mode), guessed = format == GRADCOMP_SAMPLES_AUTO;
	if (guessed)
		st = directory ? look_into(fd, path, &format, err) : look_at(fd, path, &format, err);
	if (st)
		goto fail;
	char *copy = strdup(path);
	if (copy)
		return open_as(fd, copy, directory, guessed, format, suffixes && *suffixes ? suffixes : NULL, workers,
		               out, err);
	st = text_cannot(err, "open", path);
fail:
	if (fd >= 0)
		close(fd);
	return st;
}

void gradcomp_samples_close(gradcomp_samples *s)
{
	if (s)
		s->ops->close(s);
}

uint64_t gradcomp_samples_count(const gradcomp_samples *s)
{
	return s->count;
}

gradcomp_sample_format gradcomp_samples_format(const gradcomp_samples *s)
{
	return s->format;
}

const char *gradcomp_samples_class(const gradcomp_samples *s, uint32_t label)
{
	return label < s->nclasses ? s->classes[label] : NULL;
}

static gradcomp_status check_index(const gradcomp_samples *s, uint64_t index, uint32_t part, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	if (index >= s->count)
		return error_set(err, GRADCOMP_ERR_RANGE, "%s has %llu samples; there is no sample %llu",
		                 gradcomp_printable(s->path, name, sizeof name), (unsigned long long)s->count,
		                 (unsigned long long)index);
	if (part >= s->ops->nparts(s, index))
		return error_set(err, GRADCOMP_ERR_RANGE, "sample %llu (%s) has %u parts; there is no part %u",
		                 (unsigned long long)index,
		                 gradcomp_printable(s->ops->key(s, index), name, sizeof name), s->ops->nparts(s, index),
		                 part);
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_samples_info(const gradcomp_samples *s, uint64_t index, gradcomp_sample_info *info,
                                      gradcomp_error *err)
{
	gradcomp_sample_info got = {.struct_size = info->struct_size};
	/* Every sample has a part 0. */
	gradcomp_status st = check_index(s, index, 0, err);
	if (st)
		return st;
	got.nparts = s->ops->nparts(s, index);
	got.label = s->ops->label(s, index);
	got.key = s->ops->key(s, index);
	for (uint32_t i = 0; GRADCOMP_HAS(info, bytes) && i < got.nparts; i++) {
		uint64_t bytes;
		if ((st = s->ops->part(s, index, i, NULL, &bytes, err)))
			return st;
		got.bytes += bytes;
	}
	memcpy(info, &got, info->struct_size < sizeof got ? info->struct_size : sizeof got);
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_samples_part(const gradcomp_samples *s, uint64_t index, uint32_t part, const char **name,
                                      uint64_t *bytes, gradcomp_error *err)
{
	gradcomp_status st = check_index(s, index, part, err);
	return st ? st : s->ops->part(s, index, part, name, bytes, err);
}

gradcomp_status gradcomp_samples_read(const gradcomp_samples *s, uint64_t index, uint32_t part, void *buf,
                                      uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	uint64_t n = 0;
	gradcomp_status st = check_index(s, index, part, err);
	if (!st)
		st = s->ops->read(s, index, part, buf, capacity, &n, err);
	if (bytes)
		*bytes = n;
	return st;
}
