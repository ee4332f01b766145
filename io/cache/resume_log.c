/* Which files of a directory being filled are finished: a line "INDEX SHA256"
 * each, the index into the sorted manifest. One directory serves one key, so a
 * later producer has the same manifest. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fileio.h"
#include "io/cache/resume_log.h"
#include "io/cache/cache.h"

#define RESUME_LOG "journal"
#define HEX (2 * SHA256_BYTES)

static void take(stage_manifest *m, const char *line)
{
	char *hex;
	unsigned long long index = strtoull(line, &hex, 10);
	if (hex == line || *hex++ != ' ' || index >= m->n || m->entries[index].type != STAGE_FILE)
		return;
	stage_entry *e = &m->entries[index];
	e->sealed = text_unhex_sha256(hex, e->sha256) && hex[HEX] == '\n';
}

void resume_log_read(stage_manifest *m, int temp)
{
	char line[HEX + 32];
	int fd = openat(temp, RESUME_LOG, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	if (!f) {
		if (fd >= 0)
			close(fd);
		return;
	}
	/* A line torn by a crash names no file, or one that is then found wrong. None is longer. */
	while (fileio_line(f, line, sizeof line) > 0)
		take(m, line);
	fclose(f);
}

int resume_log_open(int temp)
{
	return openat(temp, RESUME_LOG, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
}

int resume_log_add(int log, size_t index, const stage_entry *e)
{
	char sum[HEX + 1], line[HEX + 32];
	sha256_hex(e->sha256, sum);
	int n = snprintf(line, sizeof line, "%zu %s\n", index, sum);
	return write(log, line, (size_t)n) == n ? 0 : -1;
}
