/* Links over verbs need this much of a device that reads and writes memory of other machines: open, register,
 * connect, post, poll. The module transport/verbs.so (verbs/module/) implements it with libibverbs, so that nothing
 * else needs that library. Tests implement others.
 *
 * A device may be used by several threads, a queue (one end of a queue pair, with its
 * completions) by one at a time. Posting functions return 0 or an errno. */
#ifndef TRANSPORT_VERBS_FABRIC_H
#define TRANSPORT_VERBS_FABRIC_H

#include "gradcomp/abi.h"

#define FABRIC_VERSION 1u
#define FABRIC_MODULE "transport/verbs.so"
#define FABRIC_SYMBOL "gradcomp_transport_verbs"
#define FABRIC_KEY 32
#define FABRIC_OWN 12

typedef struct fabric_choice {
	const char *device; /* NAME, NAME:PORT... or "auto" */
	int gid;            /* index, or -1 for any */
	int nown;           /* addresses of the interfaces that may be used, as GIDs, best first */
	unsigned char own[FABRIC_OWN][16];
	int only_own; /* no other address may be used */
} fabric_choice;

typedef struct fabric_info {
	char name[80];        /* device, port and GID index, for messages */
	char key[FABRIC_KEY]; /* two ends with the same key may reach each other */
	uint64_t most;        /* bytes of the longest transfer */
	int foreign;          /* memory allocated elsewhere can be registered safely */
} fabric_info;

/* The address of one end of a queue pair. */
typedef struct fabric_address {
	unsigned char gid[16];
	uint32_t number; /* number of its queue pair */
	uint32_t first;  /* number of its first packet, 24 bits */
	uint16_t lid;
	uint8_t mtu; /* code, 1 to 5: 256 to 4096 bytes */
} fabric_address;

typedef struct fabric_memory {
	void *handle;
	uint32_t local, remote; /* its keys */
} fabric_memory;

typedef enum fabric_result {
	FABRIC_DONE = 0,
	FABRIC_SILENT, /* the other end does not acknowledge any more */
	FABRIC_DENIED, /* a key does not allow the access */
	FABRIC_BROKEN  /* anything else; the queue cannot be used any more */
} fabric_result;

typedef struct fabric_event {
	uint64_t id; /* the id that it was posted with */
	fabric_result result;
	int written;    /* a receive: it is a write with a value, and no message */
	uint32_t bytes; /* a receive's length */
	uint32_t value;
	const char *why; /* the result as text; static */
} fabric_event;

typedef struct fabric_ops {
	uint32_t struct_size, version;
	gradcomp_status (*open)(const fabric_choice *choice, void **device, fabric_info *info, gradcomp_error *err);
	void (*close)(void *device);
	/* The peer may write to it with its remote key. RANGE: over the limit of locked
	 * memory. */
	gradcomp_status (*reg)(void *device, void *at, size_t bytes, fabric_memory *out, gradcomp_error *err);
	void (*unreg)(void *device, fabric_memory *m);

	/* Takes up to `sends` sends and writes and `receives` receives at a time.
	 * Receives can be posted at once. *fd becomes readable as arm() says. */
	gradcomp_status (*queue)(void *device, unsigned sends, unsigned receives, void **queue, fabric_address *mine,
	                         int *fd, gradcomp_error *err);
	/* `seconds`: about when the other end's silence becomes FABRIC_SILENT. */
	gradcomp_status (*connect)(void *queue, const fabric_address *peer, double seconds, gradcomp_error *err);
	int (*receive)(void *queue, uint64_t id, void *at, uint32_t bytes, uint32_t local);
	int (*send)(void *queue, uint64_t id, const void *at, uint32_t bytes, uint32_t local);
	/* Into the peer's memory; with a value (`notify`) it takes one of the peer's
	 * receives. What was posted before has arrived by then. */
	int (*write)(void *queue, uint64_t id, const void *at, uint32_t bytes, uint32_t local, uint64_t to,
	             uint32_t remote, int notify, uint32_t value);
	/* Returns the number of events, or -1. */
	int (*poll)(void *queue, fabric_event *out, int most);
	/* The next event makes fd readable, until ack() is called. */
	int (*arm)(void *queue);
	void (*ack)(void *queue);
	/* After it returns, the queue touches no memory any more. */
	void (*unqueue)(void *queue);
} fabric_ops;

#endif
