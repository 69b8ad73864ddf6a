import java.time.Duration;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The peer of bench.brokers: replays like our partition writers, one thread per partition. Prints the seconds. */
public final class Replay {
  private final String servers;
  private final String dead;
  private final String ledger;
  private final String target;
  private final int step;
  private final int every;

  private Replay(String[] arguments) {
    servers = arguments[0];
    dead = arguments[1];
    ledger = arguments[2];
    target = arguments[3];
    step = Integer.parseInt(arguments[5]);
    every = Integer.parseInt(arguments[6]);
  }

  public static void main(String[] arguments) throws Exception {
    Replay replay = new Replay(arguments);
    int partitions = Integer.parseInt(arguments[4]);
    ExecutorService threads = Executors.newFixedThreadPool(partitions);
    long begun = System.nanoTime();
    List<Future<?>> running = new ArrayList<>();
    for (int p = 0; p < partitions; p++) {
      int partition = p;
      running.add(threads.submit(() -> {
        replay.move(partition);
        return null;
      }));
    }
    for (Future<?> one : running) {
      one.get();
    }
    System.out.println((System.nanoTime() - begun) / 1e9);
    threads.shutdown();
  }

  private void move(int partition) throws Exception {
    TopicPartition tp = new TopicPartition(dead, partition);
    try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(reading());
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(writing(partition))) {
      producer.initTransactions();
      consumer.assign(List.of(tp));
      consumer.seekToBeginning(List.of(tp));
      long end = consumer.endOffsets(List.of(tp)).get(tp);
      BitSet settled = new BitSet();
      BitSet produced = new BitSet();
      List<ConsumerRecord<byte[], byte[]>> batch = new ArrayList<>();
      while (consumer.position(tp) < end) {
        for (ConsumerRecord<byte[], byte[]> letter : consumer.poll(Duration.ofMillis(200)).records(tp)) {
          if (letter.offset() % every == 0) {
            batch.add(letter);
          }
          if (batch.size() == step) {
            commit(producer, partition, batch, settled, produced);
            batch.clear();
          }
        }
      }
      if (!batch.isEmpty()) {
        commit(producer, partition, batch, settled, produced);
      }
    }
  }

  private void commit(KafkaProducer<byte[], byte[]> producer, int partition,
      List<ConsumerRecord<byte[], byte[]>> batch, BitSet settled, BitSet produced) throws Exception {
    producer.beginTransaction();
    List<Future<RecordMetadata>> sent = new ArrayList<>(batch.size());
    for (ConsumerRecord<byte[], byte[]> letter : batch) {
      settled.set((int) letter.offset());
      sent.add(producer.send(
          new ProducerRecord<>(target, partition, null, letter.key(), letter.value(), letter.headers())));
    }
    producer.flush();
    for (Future<RecordMetadata> one : sent) {
      produced.set((int) one.get().offset());
    }
    for (Map.Entry<String, BitSet> one : Map.of("settled", settled, "produced", produced).entrySet()) {
      byte[] key = (one.getKey() + "/" + partition).getBytes();
      producer.send(new ProducerRecord<>(ledger, partition % 3, key, one.getValue().toByteArray()));
    }
    producer.commitTransaction();
  }

  private Properties reading() {
    Properties given = new Properties();
    given.put("bootstrap.servers", servers);
    given.put("key.deserializer", ByteArrayDeserializer.class);
    given.put("value.deserializer", ByteArrayDeserializer.class);
    given.put("isolation.level", "read_committed");
    given.put("enable.auto.commit", "false");
    given.put("max.poll.records", String.valueOf(step));
    return given;
  }

  private Properties writing(int partition) {
    Properties given = new Properties();
    given.put("bootstrap.servers", servers);
    given.put("key.serializer", ByteArraySerializer.class);
    given.put("value.serializer", ByteArraySerializer.class);
    given.put("transactional.id", "java." + target + "." + partition);
    given.put("batch.size", "1000000");
    given.put("linger.ms", "5");
    given.put("buffer.memory", String.valueOf(64 << 20));
    return given;
  }
}
