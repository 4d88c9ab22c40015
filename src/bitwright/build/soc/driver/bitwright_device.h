/* SPDX-License-Identifier: Apache-2.0 */
/* Registers and buffer of a Bitwright design beside a processor under Linux, whatever the design.
   C99 and POSIX, nothing else. Not run on a board. */
#ifndef BITWRIGHT_DEVICE_H
#define BITWRIGHT_DEVICE_H

#include <stddef.h>
#include <stdint.h>

enum bw_status {
    BW_OK = 0,
    BW_NO_MEMORY_DEVICE = -1, /* /dev/mem cannot be opened or mapped: are you root? */
    BW_NO_BUFFER = -2,        /* the u-dma-buf is not there, cannot be mapped, or lies badly */
    BW_NO_DESIGN = -3,        /* no Bitwright design answers at this address */
    BW_OTHER_DESIGN = -4,     /* another design than this driver was made for */
    BW_BUFFER_TOO_SMALL = -5, /* one frame, or a program with its values, does not fit */
    BW_BUS_ERROR = -6,        /* memory refused an access */
    BW_TIMEOUT = -7,          /* the design did not finish */
    BW_SHORT_FRAME = -8,      /* the input ends within a frame */
    BW_NO_PROGRAM = -9,       /* the file is no program for this engine, or cannot be read */
    BW_BAD_PROGRAM = -10,     /* the program in the buffer holds an opcode that is none */
    BW_BUSY = -11             /* a program of before runs and does not end */
};

struct bw_device {
    volatile uint32_t *registers;
    uint8_t *buffer;
    uint64_t buffer_physical;
    size_t buffer_bytes;
    uint64_t cycles; /* of the last run, all chunks together */
};

/* Registers that all designs have, as numbers of 32-bit words. */
enum { BW_REG_MAGIC = 0, BW_REG_DIGEST = 1, BW_REG_CONTROL = 2 };

/* What BW_REG_CONTROL says. */
enum { BW_STATE_RUNS = 1, BW_STATE_DONE = 2, BW_STATE_ERROR = 4 };

/* Map registers (at the physical address `control`) and a u-dma-buf ("udmabuf0"), and make sure that
   the hardware has this magic and digest. */
int bw_device_open(struct bw_device *device, uint64_t control, const char *buffer, uint32_t magic,
                   uint32_t digest);
void bw_close(struct bw_device *device);

/* A 64-bit address in two registers: of so many bytes behind the buffer's beginning. */
void bw_set_address(struct bw_device *device, uint32_t word, uint64_t offset);

/* Start what was set up and wait for its end. */
int bw_start(struct bw_device *device, uint32_t limit_ms);

/* Wait until nothing runs: BW_OK, or BW_TIMEOUT. */
int bw_wait(struct bw_device *device, uint32_t limit_ms);

/* What a status means, in words. */
const char *bw_text(int status);

#endif
