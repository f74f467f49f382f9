import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/** The word list whole, with keys: words.py says what it is and what has to become of it. */
final class Words {
    private Words() {}

    /** Sends what stands on standard input, lines of KEY:LINE, where the keys say. */
    static void produce(String brokers, String topic, String codec) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", brokers))) {
            admin.createTopics(List.of(new NewTopic(topic, Smoke.PARTITIONS, (short) 3))).all().get(30, TimeUnit.SECONDS);
        }
        // Every byte is a character of this charset: nothing is decoded.
        String input = new String(System.in.readAllBytes(), StandardCharsets.ISO_8859_1);
        List<Future<RecordMetadata>> acks = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = Smoke.producer(brokers, codec)) {
            for (String line : input.split("\n")) {
                int colon = line.indexOf(':');
                byte[] key = line.substring(0, colon).getBytes(StandardCharsets.ISO_8859_1);
                byte[] value = line.substring(colon + 1).getBytes(StandardCharsets.ISO_8859_1);
                acks.add(producer.send(new ProducerRecord<>(topic, key, value)));
            }
            producer.flush();
        }
        for (Future<RecordMetadata> ack : acks) {
            ack.get(30, TimeUnit.SECONDS);
        }
    }

    /** Writes what every partition holds as PREFIX-0, PREFIX-1, ... */
    static void read(String brokers, String topic, String prefix) throws IOException {
        try (KafkaConsumer<byte[], byte[]> consumer = Smoke.consumer(brokers)) {
            List<TopicPartition> partitions = new ArrayList<>();
            List<ByteArrayOutputStream> lines = new ArrayList<>();
            for (int partition = 0; partition < consumer.partitionsFor(topic).size(); partition++) {
                partitions.add(new TopicPartition(topic, partition));
                lines.add(new ByteArrayOutputStream());
            }
            long missing = consumer.endOffsets(partitions).values().stream().mapToLong(Long::longValue).sum();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long[] next = new long[partitions.size()];
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            while (missing > 0) {
                Smoke.must(System.nanoTime() < deadline, missing + " records are missing after 60 s");
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    long due = next[record.partition()]++;
                    Smoke.must(record.offset() == due, "offset " + record.offset() + " where " + due + " is due");
                    ByteArrayOutputStream into = lines.get(record.partition());
                    into.writeBytes(record.key());
                    into.write(':');
                    into.writeBytes(record.value());
                    into.write('\n');
                    missing--;
                }
            }
            for (int partition = 0; partition < lines.size(); partition++) {
                Files.write(Path.of(prefix + "-" + partition), lines.get(partition).toByteArray());
            }
        }
    }
}
