/* SHA-256's compression function over whole blocks. Any thread. */
#ifndef BASE_SHA256_BLOCK_H
#define BASE_SHA256_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Takes `blocks` blocks of 64 bytes into the state, by the fastest way this CPU
 * has. */
void sha256_blocks(uint32_t state[8], const unsigned char *data, size_t blocks);

/* Take one way each, for tests. The second returns false, having done nothing, on a CPU without SHA instructions. */
void sha256_blocks_portable(uint32_t state[8], const unsigned char *data, size_t blocks);
bool sha256_blocks_native(uint32_t state[8], const unsigned char *data, size_t blocks);

#endif
