#define _GNU_SOURCE
#include "transport/wire/endpoint.h"

#include "base/error.h"
#include "transport/core/transport.h"
#include "transport/wire/record_crypto.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

static void endpoint_cpus(char *out, size_t room)
{
	cpu_set_t set;
	size_t used = 0;
	out[0] = '\0';
	if (sched_getaffinity(0, sizeof set, &set))
		return;
	for (int i = 0, last; i < CPU_SETSIZE; i = last + 1) {
		last = i;
		if (!CPU_ISSET(i, &set))
			continue;
		while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set))
			last++;
		used += (size_t)snprintf(out + used, room - used, "%s%d-%d", used ? "," : "", i, last);
		if (used >= room) {
			out[0] = '\0';
			return;
		}
	}
}

void endpoint_this_node(endpoint_node *out)
{
	struct utsname machine = {0};
	char boot[40] = "";
	struct stat net = {0};
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = 0;
	memset(out, 0, sizeof *out);
	uname(&machine);
	snprintf(out->host, sizeof out->host, "%s", machine.nodename[0] ? machine.nodename : "localhost");
	for (char *p = out->host; *p; p++)
		if (*p <= ' ' || *p > '~')
			*p = '_';
	if (fd >= 0) {
		n = read(fd, boot, 36);
		close(fd);
	}
	if (n == 36 && !stat("/proc/self/ns/net", &net))
		snprintf(out->key, sizeof out->key, "%s-%lx-%x", boot, (unsigned long)net.st_ino, (unsigned)getuid());
	else
		/* It cannot be told to share memory with anybody. */
		snprintf(out->key, sizeof out->key, "alone-%s-%lx", out->host, (unsigned long)getpid());
	endpoint_cpus(out->cpus, sizeof out->cpus);
}

gradcomp_status endpoint_write(const endpoint_node *node, const char *unix_name, size_t unix_bytes, const address *addr,
                               int *naddr, char *out, size_t capacity, gradcomp_error *err)
{
	char text[ADDRESS_TEXT + 1], rest[80] = "";
	int n = 0, offered = *naddr;
	size_t tail, used = (size_t)snprintf(out, capacity, "gc1 host=%s node=%s cpus=%s unix=", node->host, node->key,
	                                     node->cpus);
	*naddr = 0;
	if (node->frames)
		snprintf(rest, sizeof rest, " frames=%s%s", record_crypto_mode_name((frames_mode)node->frames),
		         node->aes ? " aes=1" : "");
	tail = strlen(rest);
	if (node->verbs[0])
		snprintf(rest + tail, sizeof rest - tail, " verbs=%s", node->verbs);
	tail = strlen(rest);
	for (size_t i = 0; i < unix_bytes && used < capacity; i++)
		used += (size_t)snprintf(out + used, capacity - used, "%02x", (unsigned char)unix_name[i]);
	if (used < capacity)
		used += (size_t)snprintf(out + used, capacity - used, " tcp=");
	if (used + tail >= capacity)
		return error_set(err, GRADCOMP_ERR_RANGE, "this rank's endpoint record is longer than %zu bytes",
		                 capacity);
	for (; n < offered; n++) {
		size_t bytes;

		text[0] = ',';
		bytes = (size_t)address_format(&addr[n], text + 1) + 1;
		if (used + bytes + tail >= capacity)
			break;
		memcpy(out + used, text + !n, bytes - !n);
		used += bytes - !n;
	}
	if (offered && !n)
		return error_set(err, GRADCOMP_ERR_RANGE, "this rank's endpoint record is longer than %zu bytes",
		                 capacity);
	memcpy(out + used, rest, tail + 1);
	*naddr = n;
	return GRADCOMP_OK;
}

/* Finds the value of `key=` in the record, up to the next space; its length in *bytes. */
static const char *endpoint_field(const char *text, const char *key, size_t *bytes)
{
	size_t k = strlen(key);
	for (const char *p = strchr(text, ' '); p; p = strchr(p + 1, ' '))
		if (!strncmp(p + 1, key, k) && p[1 + k] == '=') {
			*bytes = strcspn(p + 2 + k, " ");
			return p + 2 + k;
		}
	*bytes = 0;
	return NULL;
}

static int endpoint_copy(const char *text, const char *key, char *out, size_t room)
{
	size_t n;
	const char *v = endpoint_field(text, key, &n);
	if (!v || n >= room)
		return -1;
	memcpy(out, v, n);
	out[n] = '\0';
	return 0;
}

const char *endpoint_host(const char *text, char out[ENDPOINT_HOST_MAX])
{
	if (endpoint_copy(text, "host", out, ENDPOINT_HOST_MAX))
		memcpy(out, "?", sizeof "?");
	return out;
}

static int endpoint_hex(const char *v, size_t n, char *out, size_t room)
{
	if (n % 2 || n / 2 > room)
		return -1;
	for (size_t i = 0; i < n / 2; i++) {
		char two[3] = {v[2 * i], v[2 * i + 1], 0};

		if (strspn(two, "0123456789abcdef") != 2)
			return -1;
		out[i] = (char)strtoul(two, NULL, 16);
	}
	return (int)(n / 2);
}

/* Absent means none. */
static int endpoint_frames(const char *text, endpoint_node *node)
{
	size_t n;
	const char *v = endpoint_field(text, "frames", &n), *name;
	for (frames_mode m = FRAMES_MAC; v && m <= FRAMES_ENCRYPT; m++) {
		name = record_crypto_mode_name(m);
		if (n == strlen(name) && !strncmp(v, name, n))
			node->frames = (int)m;
	}
	if (v && !node->frames)
		return -1;
	v = endpoint_field(text, "aes", &n);
	node->aes = v && n == 1 && *v == '1';
	return v && !node->aes ? -1 : 0;
}

static uint64_t endpoint_hash(const char *s)
{
	uint64_t h = 14695981039346656037u;
	while (*s)
		h = (h ^ (unsigned char)*s++) * 1099511628211u;
	return h;
}

gradcomp_status endpoint_read(const char *text, endpoint *out, endpoint_node *node, gradcomp_error *err)
{
	address addr[ADDRESS_MAX];
	const char *v, *what = "text";
	size_t n;
	int len;
	memset(out, 0, sizeof *out);
	memset(node, 0, sizeof *node);
	atomic_init(&out->good, -1);
	if (!text || strncmp(text, "gc1 ", 4))
		return error_set(err, GRADCOMP_ERR_INVALID, "its endpoint record is not of this version: \"%.40s\"",
		                 text ? text : "");
	for (const char *p = text; *p; p++)
		if (*p < ' ' || *p > '~' || p - text >= TRANSPORT_ENDPOINT_MAX - 1)
			goto bad;
	what = "host";
	if (endpoint_copy(text, "host", node->host, sizeof node->host) || !node->host[0])
		goto bad;
	what = "node";
	if (endpoint_copy(text, "node", node->key, sizeof node->key) || !node->key[0])
		goto bad;
	what = "cpus";
	if (endpoint_copy(text, "cpus", node->cpus, sizeof node->cpus))
		goto bad;
	what = "unix";
	v = endpoint_field(text, "unix", &n);
	if (!v || (len = endpoint_hex(v, n, out->unix_name, ENDPOINT_UNIX_MAX)) < 0)
		goto bad;
	out->unix_bytes = (unsigned char)len;
	what = "tcp";
	v = endpoint_field(text, "tcp", &n);
	if (!v)
		goto bad;
	while (n) {
		size_t one = 0;

		while (one < n && v[one] != ',')
			one++;
		if (out->naddr == ADDRESS_MAX || address_parse(v, one, &addr[out->naddr]))
			goto bad;
		out->naddr++;
		v += one + (one < n);
		n -= one + (one < n);
	}
	what = "frames";
	if (endpoint_frames(text, node))
		goto bad;
	out->aes = (unsigned char)node->aes;
	what = "verbs";
	if (endpoint_field(text, "verbs", &n) && endpoint_copy(text, "verbs", node->verbs, sizeof node->verbs))
		goto bad;
	out->verbs = node->verbs[0] ? endpoint_hash(node->verbs) : 0;
	out->host = strdup(node->host);
	if (out->naddr)
		out->addr = malloc(out->naddr * sizeof *addr);
	if (!out->host || (out->naddr && !out->addr)) {
		endpoint_clear(out);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the endpoints");
	}
	if (out->naddr)
		memcpy(out->addr, addr, out->naddr * sizeof *addr);
	return GRADCOMP_OK;
bad:
	return error_set(err, GRADCOMP_ERR_INVALID, "the %s of its endpoint record is malformed", what);
}

void endpoint_clear(endpoint *c)
{
	free(c->host);
	free(c->addr);
	memset(c, 0, sizeof *c);
}

int endpoint_number_nodes(const char *const *keys, int n, int32_t *node)
{
	size_t slots = 16, i;
	int32_t *table, count = 0;
	while (slots < 2 * (size_t)n)
		slots *= 2;
	table = malloc(slots * sizeof *table); /* the first rank of a node */
	if (!table)
		return -1;
	memset(table, 0xff, slots * sizeof *table);
	for (int r = 0; r < n; r++) {
		for (i = endpoint_hash(keys[r]) & (slots - 1); table[i] >= 0; i = (i + 1) & (slots - 1))
			if (!strcmp(keys[table[i]], keys[r]))
				break;
		if (table[i] < 0) {
			table[i] = r;
			node[r] = count++;
		} else {
			node[r] = node[table[i]];
		}
	}
	free(table);
	return count;
}

int endpoint_count_cpus(const char *const *lists, int n)
{
	cpu_set_t all;
	CPU_ZERO(&all);
	for (int i = 0; i < n; i++) {
		int first, last, used;

		for (const char *p = lists[i]; sscanf(p, "%5d-%5d%n", &first, &last, &used) == 2; p++) {
			for (; first >= 0 && first <= last && first < CPU_SETSIZE; first++)
				CPU_SET(first, &all);
			p += used;
			if (*p != ',')
				break;
		}
		if (!lists[i][0])
			return 0;
	}
	return CPU_COUNT(&all);
}
