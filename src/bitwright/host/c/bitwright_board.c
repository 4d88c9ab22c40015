/* SPDX-License-Identifier: Apache-2.0
 * Host of a board in C99 and POSIX; see bitwright_board.h. All that a program of one's own needs.
 */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* baud rates above 38400, and POSIX beside -std=c99 */
#endif
#include "bitwright_board.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { HELLO = 1, OPEN = 2, DATA = 3 };                 /* of the host */
enum { SAYS_HELLO = 1, SAYS_STATUS = 2, SAYS_ANSWER = 3 }; /* of the device */
enum { VERSION = 1, HOST_HEAD = 8, DEVICE_HEAD = 20, CRC_BYTES = 4, HELLO_BYTES = 32 };
enum { IS_OPEN = 1, MOST_SENT = 200, LEAST_CHUNK = 16, MOST_CHUNK = 255, LEAST_WINDOW = 64 };
enum { TRIES = 50, TRY_MS = 200, LEAST_WAIT_MS = 40, MOST_WAIT_MS = 1000, PATIENCE_MS = 10000 };
enum { STALLED_MS = 30 * PATIENCE_MS }; /* of a board that talks, but neither takes nor answers */
enum { MOST_FRAMES = 4096, MOST_TIMES = 1000 };

/* One frame whose answer is not whole. */
typedef struct {
  size_t number;
  uint32_t parts;
  uint32_t times; /* that its answer was lost */
} pending;

/* A packet on its way. */
typedef struct {
  uint32_t order, size, end;
} sent;

static uint32_t crc32_of(const uint8_t *bytes, size_t count) {
  uint32_t crc = 0xFFFFFFFFu;
  for (size_t i = 0; i < count; i++) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1u ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

static uint32_t little(const uint8_t *bytes, int count) {
  uint32_t value = 0;
  for (int i = 0; i < count; i++) value |= (uint32_t)bytes[i] << (8 * i);
  return value;
}

static long now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (long)(time.tv_sec * 1000 + time.tv_nsec / 1000000);
}

static int fail(bitwright_board *board, const char *what, int with_errno) {
  (void)snprintf(board->error, sizeof board->error, "%s%s%s", what, with_errno ? ": " : "",
                 with_errno ? strerror(errno) : "");
  return -1;
}

const char *bitwright_error(const bitwright_board *board) { return board->error; }

void bitwright_close(bitwright_board *board) {
  if (board->fd >= 0) (void)close(board->fd);
  board->fd = -1;
}

/* --- packets ------------------------------------------------------------------------------ */

static int send_packet(bitwright_board *board, int kind, uint32_t offset, const uint8_t *payload,
                       uint8_t length) {
  uint8_t packet[HOST_HEAD + MOST_CHUNK + CRC_BYTES + 1] = {0x62, 0x57};
  packet[2] = (uint8_t)(VERSION << 4 | kind);
  packet[3] = board->session;
  packet[4] = (uint8_t)board->order++;
  packet[5] = length;
  packet[6] = (uint8_t)offset;
  packet[7] = (uint8_t)(offset >> 8);
  if (length) memcpy(packet + HOST_HEAD, payload, length);
  const uint32_t crc = crc32_of(packet + 2, HOST_HEAD - 2u + length);
  for (int i = 0; i < CRC_BYTES; i++) packet[HOST_HEAD + length + i] = (uint8_t)(crc >> (8 * i));
  /* One byte more: a packet that lost one takes this, not the next packet's first. */
  const size_t size = HOST_HEAD + (size_t)length + CRC_BYTES + 1;
  for (size_t done = 0; done < size;) {
    const ssize_t count = write(board->fd, packet + done, size - done);
    if (count > 0) {
      done += (size_t)count;
    } else if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      struct pollfd wait = {board->fd, POLLOUT, 0};
      if (poll(&wait, 1, PATIENCE_MS) == 0) return fail(board, "the port takes nothing", 0);
    } else {
      return fail(board, "the port is gone", 1);
    }
  }
  board->statistics.sent_bytes += size;
  return 0;
}

static void drop(bitwright_board *board, size_t count) {
  board->held -= count;
  memmove(board->buffer, board->buffer + count, board->held);
}

/* A packet out of the bytes that are held: its payload, or NULL while there is none. */
static const uint8_t *parse(bitwright_board *board, uint8_t payload[MOST_CHUNK]) {
  for (;;) {
    const uint8_t *b = board->buffer;
    size_t at = 0;
    while (at < board->held && !(b[at] == 0x42 && (at + 1 == board->held || b[at + 1] == 0x77))) at++;
    drop(board, at);
    if (board->held < DEVICE_HEAD + CRC_BYTES) return NULL;
    const int kind = b[2] & 15;
    const uint8_t most = kind == SAYS_HELLO ? HELLO_BYTES : kind == SAYS_ANSWER ? BITWRIGHT_CHUNK : 0;
    const size_t size = DEVICE_HEAD + (size_t)b[5] + CRC_BYTES;
    if (b[2] >> 4 == VERSION && kind >= SAYS_HELLO && kind <= SAYS_ANSWER && b[5] <= most) {
      if (board->held < size) return NULL;
      if (crc32_of(b + 2, size - 2 - CRC_BYTES) == little(b + size - CRC_BYTES, CRC_BYTES)) {
        board->kind = (uint8_t)kind;
        board->packet_session = b[3];
        board->sequence = b[4];
        board->length = b[5];
        board->received = little(b + 6, 2);
        board->consumed = little(b + 8, 2);
        board->frame = little(b + 10, 2);
        board->chunk = little(b + 12, 2);
        board->statistics.damaged += (uint8_t)(b[14] - board->damaged);
        board->damaged = b[14];
        board->flags = b[15];
        board->cycles = little(b + 16, 4);
        memcpy(payload, b + DEVICE_HEAD, board->length);
        drop(board, size);
        return payload;
      }
    }
    drop(board, 1);
  }
}

/* The next packet: 1, or 0 when none comes in time, or -1. */
static int receive(bitwright_board *board, uint8_t payload[MOST_CHUNK], long wait_ms) {
  const long end = now_ms() + wait_ms;
  for (;;) {
    if (parse(board, payload)) return 1;
    const long left = end - now_ms();
    struct pollfd wait = {board->fd, POLLIN, 0};
    const int ready = poll(&wait, 1, left > 0 ? (int)left : 0);
    if (ready < 0 && errno != EINTR) return fail(board, "the port is gone", 1);
    if (ready <= 0) {
      if (left > 0 && ready < 0) continue;
      if (wait_ms > 0 && board->held) { /* silence: what waits for more is no packet */
        drop(board, 1);
        wait_ms = 0;
        continue;
      }
      return 0;
    }
    const ssize_t count =
        read(board->fd, board->buffer + board->held, sizeof board->buffer - board->held);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
      return fail(board, "the port is gone", 1);
    if (count > 0) {
      board->held += (size_t)count;
      board->statistics.got_bytes += (unsigned long)count;
    }
  }
}

/* --- a session ---------------------------------------------------------------------------- */

static speed_t speed_of(unsigned long baud) {
  switch (baud) {
    case 115200ul: return B115200;
#ifdef B460800
    case 460800ul: return B460800;
#endif
#ifdef B500000
    case 500000ul: return B500000;
#endif
#ifdef B921600
    case 921600ul: return B921600;
#endif
#ifdef B1000000
    case 1000000ul: return B1000000;
#endif
#ifdef B1500000
    case 1500000ul: return B1500000;
#endif
#ifdef B2000000
    case 2000000ul: return B2000000;
#endif
#ifdef B3000000
    case 3000000ul: return B3000000;
#endif
    default: return B0;
  }
}

static int open_port(bitwright_board *board, const char *port) {
  struct termios line;
  board->fd = open(port, O_RDWR | O_NOCTTY | O_NONBLOCK);
  if (board->fd < 0) return fail(board, "the port cannot be opened", 1);
  if (tcgetattr(board->fd, &line) != 0) return fail(board, "this is no serial port", 1);
  line.c_iflag = 0;
  line.c_oflag = 0;
  line.c_lflag = 0;
  line.c_cflag = CS8 | CREAD | CLOCAL;
  line.c_cc[VMIN] = 0;
  line.c_cc[VTIME] = 0;
  const speed_t speed = speed_of(BITWRIGHT_BAUD);
  if (speed == B0) return fail(board, "this system does not know the board's baud rate", 0);
  if (cfsetispeed(&line, speed) != 0 || cfsetospeed(&line, speed) != 0 ||
      tcsetattr(board->fd, TCSANOW, &line) != 0) {
    return fail(board, "the port cannot be set up", 1);
  }
  (void)tcflush(board->fd, TCIOFLUSH);
  return 0;
}

static int from_hex(char sign) { return sign <= '9' ? sign - '0' : sign - 'a' + 10; }

int bitwright_open(bitwright_board *board, const char *port) {
  uint8_t payload[MOST_CHUNK], digest[8];
  memset(board, 0, sizeof *board);
  board->fd = -1;
  if (open_port(board, port) != 0) return bitwright_close(board), -1;
  for (size_t i = 0; i < sizeof digest; i++) {
    digest[i] = (uint8_t)(from_hex(BITWRIGHT_DIGEST[2 * i]) << 4 | from_hex(BITWRIGHT_DIGEST[2 * i + 1]));
  }
  int got = 0;
  for (int i = 0; i < TRIES && got == 0; i++) {
    if (send_packet(board, HELLO, 0, NULL, 0) != 0) return bitwright_close(board), -1;
    const long end = now_ms() + TRY_MS; /* of packets of other kinds there may be any number */
    do got = receive(board, payload, TRY_MS);
    while (got == 1 && board->kind != SAYS_HELLO && now_ms() < end);
    if (got == 1 && (board->kind != SAYS_HELLO || board->length != HELLO_BYTES)) got = 0;
  }
  if (got == 0) (void)fail(board, "nothing that speaks Bitwright's protocol answers", 0);
  if (got <= 0) return bitwright_close(board), -1;
  if (memcmp(payload, digest, sizeof digest) != 0 ||
      little(payload + 8, 4) != BITWRIGHT_INPUT_BYTES ||
      little(payload + 12, 4) != BITWRIGHT_ANSWER_BYTES) {
    (void)fail(board, "the board has another design: load the bitstream of this header", 0);
    return bitwright_close(board), -1;
  }
  board->session = board->packet_session; /* each try opens another one */
  board->session = (uint8_t)(board->session + (unsigned)now_ms() % 128u);
  for (int i = 0; i < TRIES; i++) {
    board->session++;
    if (send_packet(board, OPEN, 0, digest, sizeof digest) != 0) break;
    const long end = now_ms() + TRY_MS;
    while (now_ms() < end && (got = receive(board, payload, TRY_MS)) == 1) {
      if (board->packet_session == board->session && board->flags & IS_OPEN && !board->received &&
          !board->frame) {
        return 0;
      }
    }
    if (got < 0) break;
  }
  if (!board->error[0]) (void)fail(board, "the board opens no session", 0);
  return bitwright_close(board), -1;
}

/* The stream of frames on its way: frames in the order of sending, the first `offset` bytes of
 * the first one of them already with the board. */
typedef struct {
  const uint8_t *frames;
  uint8_t *answers;
  uint32_t *cycles;
  size_t count, next, done; /* frames: all, to be sent first, answered */
  pending queue[MOST_FRAMES];
  size_t head, tail;        /* of the queue, by number of the session's frame */
  uint32_t base, position, furthest, consumed; /* of the stream, in bytes */
  sent flying[MOST_SENT];
  size_t flights;
  uint32_t rewound, chunk, window;
} stream;

static void queue_frame(stream *s, pending frame) { s->queue[s->tail++ % MOST_FRAMES] = frame; }

/* A byte of the stream. Positions wrap, so they are told from that of the first queued frame. */
static uint8_t byte_at(const stream *s, uint32_t first, uint32_t position) {
  const uint32_t offset = position - first;
  const pending *entry = &s->queue[(s->head + offset / BITWRIGHT_INPUT_BYTES) % MOST_FRAMES];
  return s->frames[entry->number * BITWRIGHT_INPUT_BYTES + offset % BITWRIGHT_INPUT_BYTES];
}

static uint32_t first_of(const stream *s) { return (uint32_t)s->head * BITWRIGHT_INPUT_BYTES; }

static int post(bitwright_board *board, stream *s, uint32_t offset, const uint8_t *payload,
                uint8_t length) {
  if (s->flights == MOST_SENT) { /* the oldest one is forgotten: its loss shows in the others */
    memmove(s->flying, s->flying + 1, --s->flights * sizeof *s->flying);
  }
  s->flying[s->flights++] = (sent){board->order, length, offset + length};
  return send_packet(board, DATA, offset, payload, length);
}

static int push(bitwright_board *board, stream *s) {
  uint8_t payload[MOST_CHUNK];
  const uint32_t end = (uint32_t)s->tail * BITWRIGHT_INPUT_BYTES;
  uint32_t flying = 0, left = s->consumed + BITWRIGHT_BUFFER_BYTES - s->position;
  int pushed = 0;
  if (end - s->position < left) left = end - s->position;
  for (size_t i = 0; i < s->flights; i++) flying += s->flying[i].size;
  while (left > 0 && flying < s->window && s->flights < MOST_SENT) {
    const uint32_t size = left < s->chunk ? left : s->chunk;
    for (uint32_t i = 0; i < size; i++) payload[i] = byte_at(s, first_of(s), s->position + i);
    if (post(board, s, s->position, payload, (uint8_t)size) != 0) return -1;
    s->position += size;
    left -= size;
    flying += size;
    pushed = 1;
    if (s->position - s->base > s->furthest - s->base) s->furthest = s->position;
  }
  if (pushed && s->chunk < MOST_CHUNK) return post(board, s, s->position, NULL, 0);
  return 0;
}

static void rewind_stream(const bitwright_board *board, stream *s) {
  s->position = s->base;
  s->rewound = board->order;
  s->chunk = s->chunk / 2 > LEAST_CHUNK ? s->chunk / 2 : LEAST_CHUNK;
  s->window = s->window / 2 > LEAST_WINDOW ? s->window / 2 : LEAST_WINDOW;
}

/* How far the board has come, and whether something on the way to it was lost. */
static int learn(bitwright_board *board, stream *s) {
  const uint32_t ahead = (board->received - s->base) & 0xFFFFu;
  const uint32_t order = board->order - 1u - ((board->order - 1u - board->sequence) & 0xFFu);
  size_t gone = 0;
  int lost = 0;
  if (ahead > s->furthest - s->base) return fail(board, "the board has bytes never sent", 0);
  if (s->position - s->base < ahead) s->position = s->base + ahead;
  s->base += ahead;
  if (ahead) {
    s->chunk = s->chunk + 8 < MOST_CHUNK ? s->chunk + 8 : MOST_CHUNK;
    s->window = s->window + ahead < BITWRIGHT_BUFFER_BYTES ? s->window + ahead : BITWRIGHT_BUFFER_BYTES;
  }
  s->consumed = s->base - ((board->received - board->consumed) & 0xFFFFu);
  while (gone < s->flights && (int32_t)(s->flying[gone].order - order) <= 0) {
    const sent *flight = &s->flying[gone++];
    lost |= (int32_t)(flight->order - s->rewound) >= 0 && (int32_t)(flight->end - s->base) > 0;
  }
  s->flights -= gone;
  memmove(s->flying, s->flying + gone, s->flights * sizeof *s->flying);
  if (lost) rewind_stream(board, s);
  return 0;
}

/* The first frame's answer, or a part of it, is gone: the frame goes again, behind the others.
 * What has come of its answer stays. */
static int lost_answer(bitwright_board *board, stream *s) {
  pending frame = s->queue[s->head++ % MOST_FRAMES];
  if (++frame.times > MOST_TIMES) return fail(board, "an answer was lost a thousand times", 0);
  queue_frame(s, frame);
  board->statistics.repeated_frames++;
  return 0;
}

static int take(bitwright_board *board, stream *s, const uint8_t *payload) {
  if (board->packet_session != board->session || !(board->flags & IS_OPEN)) {
    return fail(board, "the board was started again or serves another program", 0);
  }
  if (learn(board, s) != 0) return -1;
  const uint32_t behind = (board->frame - (uint32_t)s->head) & 0xFFFFu;
  if (behind >= 0x8000u) return 0;
  for (uint32_t i = 0; i < behind && s->head != s->tail; i++) {
    if (lost_answer(board, s) != 0) return -1;
  }
  if (board->kind != SAYS_ANSWER || s->head == s->tail || board->chunk >= BITWRIGHT_PARTS) return 0;
  pending *entry = &s->queue[s->head % MOST_FRAMES];
  uint8_t *answer = s->answers + entry->number * BITWRIGHT_ANSWER_BYTES;
  const uint32_t left = BITWRIGHT_ANSWER_BYTES - board->chunk * BITWRIGHT_CHUNK;
  if (board->length != (left < BITWRIGHT_CHUNK ? left : BITWRIGHT_CHUNK)) {
    return fail(board, "a part of an answer has another length than it must", 0);
  }
  if (entry->parts == board->chunk) { /* else one before it is missing, or it is here already */
    memcpy(answer + board->chunk * BITWRIGHT_CHUNK, payload, board->length);
    entry->parts++;
  }
  if (board->chunk == BITWRIGHT_PARTS - 1u) {
    if (entry->parts < BITWRIGHT_PARTS) {
      return lost_answer(board, s);
    }
    if (s->cycles) s->cycles[entry->number] = board->cycles;
    s->head++;
    s->done++;
  }
  return 0;
}

int bitwright_run(bitwright_board *board, const uint8_t *frames, size_t count, uint8_t *answers,
                  uint32_t *cycles) {
  uint8_t payload[MOST_CHUNK];
  stream *s = board->fd < 0 ? NULL : calloc(1, sizeof *s);
  int result = 0;
  if (!s) return fail(board, board->fd < 0 ? "no session is open" : "no memory", 0);
  s->frames = frames;
  s->answers = answers;
  s->cycles = cycles;
  s->count = count;
  s->chunk = MOST_CHUNK;
  s->window = BITWRIGHT_BUFFER_BYTES;
  s->rewound = board->order;
  s->head = s->tail = board->frames; /* a session goes on where the last call ended */
  s->base = s->position = s->furthest = s->consumed = first_of(s);
  long heard = now_ms(), advanced = heard, silence = LEAST_WAIT_MS;
  uint32_t came = s->base + s->consumed + (uint32_t)s->done;
  while (s->done < count && result == 0) {
    while (s->next < count && s->tail - s->head < MOST_FRAMES - 1u &&
           (uint32_t)s->tail * BITWRIGHT_INPUT_BYTES - s->base < 2u * BITWRIGHT_BUFFER_BYTES) {
      queue_frame(s, (pending){s->next++, 0, 0});
    }
    if ((result = push(board, s)) != 0) break;
    const int got = receive(board, payload, silence);
    if (got < 0) result = -1;
    if (got == 1) {
      result = take(board, s, payload);
      heard = now_ms();
      silence = LEAST_WAIT_MS;
      const uint32_t now = s->base + s->consumed + (uint32_t)s->done;
      if (now - came - 1u < UINT32_MAX / 2u) { /* further than ever, not to and fro */
        came = now;
        advanced = heard;
      } else if (heard - advanced > STALLED_MS && result == 0) {
        result = fail(board, "the board talks, but gets no further", 0);
      }
    } else if (got == 0) {
      board->statistics.timeouts++;
      silence = 2 * silence < MOST_WAIT_MS ? 2 * silence : MOST_WAIT_MS;
      if (now_ms() - heard > PATIENCE_MS) result = fail(board, "the board has been silent", 0);
      else result = post(board, s, s->base, NULL, 0); /* its reply says what became of the rest */
    }
  }
  board->frames = s->head;
  free(s);
  if (result != 0) bitwright_close(board);
  return result;
}

/* --- frames and answers ------------------------------------------------------------------- */

void bitwright_pack_levels(const int32_t *levels, uint8_t *frame) {
  memset(frame, 0, BITWRIGHT_INPUT_BYTES);
  for (size_t beat = 0; beat < BITWRIGHT_INPUT_BEATS; beat++) {
    for (size_t lane = 0; lane < BITWRIGHT_INPUT_LANES; lane++) {
      const int32_t level = levels[beat * BITWRIGHT_INPUT_LANES + lane];
      const uint32_t code = BITWRIGHT_INPUT_BIPOLAR ? level > 0 : (uint32_t)level;
      for (size_t bit = 0; bit < BITWRIGHT_INPUT_LANE_BITS; bit++) {
        const size_t at = lane * BITWRIGHT_INPUT_LANE_BITS + bit;
        const uint32_t value = bit < 32 ? code >> bit & 1u : (uint32_t)(level < 0);
        frame[beat * BITWRIGHT_INPUT_BEAT_BYTES + at / 8] |= (uint8_t)(value << at % 8);
      }
    }
  }
}

#if BITWRIGHT_HAS_IMAGES
void bitwright_pack_pixels(const uint8_t *pixels, uint8_t *frame) {
  static int32_t levels[BITWRIGHT_INPUT_ELEMENTS];
  for (size_t i = 0; i < BITWRIGHT_INPUT_ELEMENTS; i++) {
    levels[i] = bitwright_levels[i % BITWRIGHT_CHANNELS % BITWRIGHT_TABLES][pixels[i]];
  }
  bitwright_pack_levels(levels, frame);
}
#endif

int64_t bitwright_element(const uint8_t *answer, unsigned output, size_t index) {
  static const struct {
    size_t offset, bytes;
    int is_signed;
  } table[] = {BITWRIGHT_OUTPUT_TABLE};
  const size_t bytes = table[output].bytes;
  const uint8_t *at = answer + table[output].offset + index * bytes;
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
  if (table[output].is_signed && at[bytes - 1] & 0x80u && bytes < 8) value |= ~(uint64_t)0 << (8 * bytes);
  return (int64_t)value;
}
